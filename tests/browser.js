// What tests/browser.py asks of a page; runs in it before anything else.
window.lab = {
  running: 0,  // commands that have been started and have not ended
  messages: 0,  // received through websockets
  bytes: 0,
  get panel() { return window.jupyterapp?.shell?.currentWidget; },
  get cells() { return this.panel?.content?.widgets ?? []; },
  get kernel() { return this.panel?.sessionContext?.session?.kernel ?? undefined; },
  busy() {
    const star = cell => cell.node.querySelector('.jp-InputPrompt')?.textContent.includes('*');
    return this.cells.flatMap((cell, i) => star(cell) ? [i] : []);
  },
  shown(path) {
    return this.panel?.context?.path === path && this.cells.length > 0 && this.kernel !== undefined
      && document.getElementById('jupyterlab-splash') === null;
  },
  idle() { return this.kernel?.status === 'idle' && this.running === 0 && this.busy().length === 0; },
  start(name, args) {
    this.running += 1;
    jupyterapp.commands.execute(name, args).finally(() => { this.running -= 1; });
  },
  run(i) {  // null: all cells
    if (i !== null) {
      this.panel.content.deselectAll();
      this.panel.content.activeCellIndex = i;
    }
    this.start(i === null ? 'notebook:run-all-cells' : 'notebook:run-cell');
  },
};
window.WebSocket = new Proxy(WebSocket, {construct(Socket, args) {
  const socket = new Socket(...args);
  socket.addEventListener('message', ({data}) => {
    lab.messages += 1;
    lab.bytes += data.byteLength ?? data.size ?? data.length;
  });
  return socket;
}});
