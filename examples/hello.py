# /// script
# requires-python = ">=3.11"
# dependencies = ["ulak"]
#
# [tool.uv.sources]
# ulak = { path = ".." }
# ///
"""A task, its jobs, its workers: `python hello.py`, `uv run hello.py`, or `ulak work hello:app`."""

from ulak import App

app = App("sqlite:///hello.db")


@app.task(max_attempts=5)
def welcome(name: str) -> str:
    """Greet somebody."""
    return f"welcome, {name}"


if __name__ == "__main__":
    with app.workers(4):
        print(welcome.enqueue("ada").result(timeout=10))
