"""Calls of tasks that a type checker must refuse: each line that is marked, and no other."""

from ulak import App, Backoff, Context, Job

app = App("memory://", queues=["mail"])


@app.task
def welcome(email: str, *, loud: bool = False) -> str:
    raise NotImplementedError


@app.task
async def fetch(url: str) -> bytes:
    raise NotImplementedError


@app.task
def first(job: Context, n: int) -> int:
    raise NotImplementedError


@app.task
async def afirst(job: Context, n: int) -> int:
    raise NotImplementedError


welcome.enqueue("ada", loud=True)
welcome.enqueue(42)  # refused
welcome.enqueue()  # refused
welcome.enqueue("ada", True)  # refused
welcome.enqueue("ada", lod=True)  # refused
welcome.call(1)  # refused
welcome.using(delay=1).enqueue(1)  # refused
welcome(1)  # refused
fetch.enqueue(b"x")  # refused
first.enqueue(1)
first.enqueue("x")  # refused
first.enqueue(None, 1)  # refused
first.enqueue(1, job=None)  # refused
afirst.enqueue("x")  # refused
welcome.using(dealy=3)  # refused
welcome.using(priority="high")  # refused
welcome.using(delay=b"1s")  # refused
welcome.using(run_at="tomorrow")  # refused
welcome.using(queue=3)  # refused
welcome.using(unique_key=3)  # refused
welcome.using(idempotency_key=3)  # refused
welcome.using(expires=b"1h")  # refused
welcome.using(max_attempts="3")  # refused
welcome.using(headers={"trace": 1})  # refused
welcome.using(wait=b"1s")  # refused
welcome.using(delay="1m", priority=9, unique_key="ada", queue="mail", wait=None).enqueue("ada")
welcome.using(backoff=lambda attempt, error: 3)  # refused
job: Job[int] = welcome.enqueue("ada")  # refused
number: int = fetch.enqueue("x").result()  # refused
welcome.enqueue_many([fetch.call("x")])  # refused
app.task(max_retries=3)  # refused
app.task(timeout=b"1m")  # refused
app.task("mail.welcome")  # refused
App(max_atempts=3)  # refused
App(queues=3)  # refused
App(backoff="1s")  # refused
app.task(backoff=Backoff(1))
app.workers("8")  # refused
app.cron(30)  # refused
app.every(b"30s")  # refused
app.every(30, catch_up="never")  # refused
app.cron("* * * * *", catch_up="never")  # refused
app.cron("* * * * *", catch_up=None)  # refused
app.cron("* * * * *", tz=3)  # refused
app.every(30, catch_up="skip")
app.cron("* * * * *", tz="Europe/Istanbul", catch_up="once")
app.cron("* * * * *", using={"dealy": 3})  # refused
app.cron("* * * * *", catch_up="all", using={"unique_key": "k"})


async def main() -> None:
    job = await welcome.aenqueue("ada")
    text: str = await job
    number: int = await job  # refused
    await welcome.aenqueue(3)  # refused
    print(text, number)
