"Notebooks as a person uses them, in a real browser: cells run, stop and answer clicks, and the machine is not left."
import pytest

pytestmark = pytest.mark.slow

BUTTON = """
import ipywidgets as widgets
button, label = widgets.Button(description='Add'), widgets.Label('0')
button.on_click(lambda _: setattr(label, 'value', str(int(label.value) + 1)))
widgets.VBox([button, label])
"""


def test_cells_run_in_order_and_show_what_they_print(lab):
    lab.open(["word = 'one'\nprint(word)", "print(word, 'two')"])
    lab.run()
    lab.wait_idle()
    assert [lab.text(0), lab.text(1)] == ["one\n", "one two\n"]


def test_an_interrupt_ends_the_busy_cell_and_what_is_queued_does_not_run(lab):
    lab.open(["import time\nprint('started')\nfor _ in range(600): time.sleep(0.1)", "print('ran')", "print(1 + 1)"])
    lab.run()
    lab.wait_text(0, "started")
    assert lab.busy() == [0, 1, 2]
    lab.interrupt()
    lab.wait_text(0, "KeyboardInterrupt")
    lab.wait_idle()
    assert [lab.text(1), lab.text(2)] == ["", ""]
    lab.run(2)
    lab.wait_text(2, "^2$")


def test_a_button_works_when_the_kernel_is_idle(lab):
    lab.open([BUTTON])
    lab.run()
    lab.wait_text(0, "^0$")
    for count in "12":
        lab.output(0).get_by_role("button", name="Add").click()
        lab.wait_text(0, f"^{count}$")


def test_what_asks_for_another_machine_is_cut_off_and_seen(server):
    server.open(["from IPython.display import HTML\nHTML('<img src=\"http://192.0.2.1/a.png\">')"])
    server.run()
    server.wait(lambda: server.errors)
    assert set(server.blocked) == {"http://192.0.2.1/a.png"}
