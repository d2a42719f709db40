"""Waiting workflows in the state's store: one task token each, until it is answered.

1  task_tokens/<job run id>/<message id>        written before the message is deleted, and before the log entry of the
                                                waiter: the token is stored nowhere else
2  the answer is sent to the service            after a crash it is sent again; the service answers that the token
                                                is not known any more
3  answered_waiters/<job run id>/<message id>   from now on the answer is not sent again
4  the token is deleted                         after a crash before this, the next reader deletes it
"""

from typing import Literal

from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import Corrupt
from compactor.storage.object_store import ObjectStore
from dispatcher.records.keys import AnsweredWaiter, TaskToken

AnswerStatus = Literal["succeeded", "failed", "gone", "refused"]


class WaiterAnswer(Document):
    """`gone`: the workflow no longer waited. `refused`: the service never accepts our answer for this token."""

    at_ms: int
    answer: AnswerStatus


class CallbackStore:
    """Thread-safe."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def keep(self, job_run_id: str, message_id: str, task_token: str) -> None:
        """Stores a task token. Idempotent: the first token of a message is kept."""
        self._store.put_if_absent(TaskToken(job_run_id, message_id).key, task_token.encode())

    def discard(self, job_run_id: str, message_id: str) -> None:
        """Deletes the task token of a message that does not wait for this job run."""
        self._store.delete(TaskToken(job_run_id, message_id).key)

    def waiting(self, job_run_id: str) -> dict[str, str]:
        """The unanswered task tokens, by message. Deletes tokens that are answered already."""
        kept = [TaskToken.parse(entry.key) for entry in self._store.list(TaskToken.prefix(job_run_id))]
        answered = self.answers(job_run_id) if kept else {}
        found = {}
        for path in kept:
            if path.message_id in answered:
                self._store.delete(path.key)
                continue
            body = self._store.read(path.key)
            if body is not None:
                found[path.message_id] = _text(body, path.key)
        return found

    def has_tokens(self, job_run_id: str) -> bool:
        """Whether workflows wait, by the names of the tokens alone: reads none."""
        return any(True for _ in self._store.list(TaskToken.prefix(job_run_id)))

    def answered(self, job_run_id: str, message_id: str, answer: AnswerStatus) -> None:
        """Records the answer and deletes the token."""
        receipt = WaiterAnswer(at_ms=self._clock.now_ms(), answer=answer)
        self._store.put_if_absent(AnsweredWaiter(job_run_id, message_id).key, receipt.render())
        self._store.delete(TaskToken(job_run_id, message_id).key)

    def answers(self, job_run_id: str) -> dict[str, WaiterAnswer]:
        """The answers, by message."""
        found = {}
        for entry in self._store.list(AnsweredWaiter.prefix(job_run_id)):
            body = self._store.read(entry.key)
            if body is not None:
                found[AnsweredWaiter.parse(entry.key).message_id] = WaiterAnswer.parse_durable(body, entry.key)
        return found


def _text(body: bytes, where: str) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise Corrupt(f"{where} does not hold a task token") from None  # the error would quote it
