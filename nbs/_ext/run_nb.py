"Runs a notebook without a browser, in a temporary folder, and prints the last number that its output gives for a word."
import re
import sys
import tempfile
from collections.abc import Iterator

import nbformat
from nbclient import NotebookClient


def lines(nb: nbformat.NotebookNode) -> Iterator[str]:
    "Every line of text that the cells printed or returned."
    for cell in nb.cells:
        for out in cell.get("outputs", []):
            yield from (out.get("text") or out.get("data", {}).get("text/plain", "")).splitlines()


def last_of(word: str, said: list[str]) -> str:
    "The last line with the word and a number, or the last row of a table with the word in its head; else the last line."
    for at in reversed([i for i, line in enumerate(said) if word in line.lower()]):
        if re.search(rf"{word}.*\d", said[at], re.I):
            return said[at]
        rows = [line for line in said[at + 1:] if len(line.split()) == len(said[at].split())]
        if rows:
            return f"{said[at]}\n{rows[-1]}"
    return "\n".join(said[-1:])


if __name__ == "__main__":
    path, word = sys.argv[1:]
    nb = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        settings = dict(resources=dict(metadata=dict(path=folder)), extra_arguments=["--log-level=ERROR"])
        NotebookClient(nb, timeout=600, kernel_name="python3", **settings).execute()
    print(last_of(word, [line for line in lines(nb) if line.strip()]))
