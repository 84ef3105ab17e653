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
  fill(sources) {
    const {sharedModel} = this.panel.content.model;
    sharedModel.transact(() => {
      sharedModel.deleteCellRange(0, sharedModel.cells.length);
      sharedModel.insertCells(0, sources.map(source => ({cell_type: 'code', source})));
    });
  },
  says(node) { return [...node.childNodes].some(child => child.nodeType === Node.TEXT_NODE && child.data.trim()); },
  contrast(node) {  // of its text with what is behind it
    const above = [], pen = new OffscreenCanvas(1, 1).getContext('2d');
    for (let n = node; n; n = n.parentElement) above.unshift(getComputedStyle(n));
    const paint = (colour) => {
      pen.fillStyle = colour;
      pen.fillRect(0, 0, 1, 1);
      const linear = v => v < 11 ? v / 3295 : ((v / 255 + 0.055) / 1.055) ** 2.4;
      const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map(linear);
      return 0.05 + 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const back = above.map(style => paint(style.backgroundColor)).at(-1);
    pen.globalAlpha = above.reduce((product, style) => product * style.opacity, 1);
    const text = paint(above.at(-1).color);
    return Math.max(text, back) / Math.min(text, back);
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
