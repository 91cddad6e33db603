"""Calls that a type checker must refuse: each line that is marked, and no other."""

from ulak import Backoff, Queue, Retention

q = Queue("memory://", name="mail")
q.enqueue("fine", 1, delay=2)
q.enqueue("a priority is a number", "high")  # refused
q.enqueue("no such option", dealy=2)  # refused
q.enqueue("options are keywords", 1, 30.0)  # refused
q.ack(17)  # refused
q.redrive("dead")  # refused
q.configure(capacity="many")  # refused
q.ack_many(17)  # refused
Retention(dead=5)  # refused
Queue("memory://", capacity="many")  # refused
Backoff(base=b"1s")  # refused
q.workers("not callable")  # refused
