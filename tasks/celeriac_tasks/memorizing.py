"""Memories in a step: what a model's tools do with them, and what its call is shown of them.

The owner is the user of the claimed run, whatever a model says. What is sensitive in a proposal is
withheld before the response that holds it is stored anywhere.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    UserPromptPart,
)
from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.errors import InvalidArguments, NoConnection
from celeriac.ids import ApprovalId
from celeriac.memory import asking
from celeriac.memory.candidate import MemoryCandidate
from celeriac.memory.origin import find_source, find_words
from celeriac.memory.policy import MemoryPolicy
from celeriac.memory.recall import Memory, quoted
from celeriac.memory.sensitive import withhold
from celeriac.memory.tools import REMEMBER, RememberCall
from celeriac.messages import user_message
from celeriac.reports import to_json
from celeriac.tools import parse_arguments
from celeriac_storage import history, memories, ranking, recalls, remembering
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.ranking import Meaning
from celeriac_storage.recalls import Recalled
from celeriac_storage.step_record import Event
from celeriac_tasks import embedding
from celeriac_tasks.loaded_agent import LoadedAgent


class RunMemories:
    """The memories of the run's user, for the tools of one call (`celeriac.memory.tools`).

    With a `connection` all of it is part of the step's own transaction; without, it only reads.
    """

    def __init__(
        self,
        database: Database,
        connection: Connection | None,
        claim: Claim,
        effect: Effect,
        approval_id: ApprovalId | None,
    ) -> None:
        self._database = database
        self._connection = connection
        self._claim = claim
        self._effect = effect
        self._approval_id = approval_id
        self.events: list[Event] = []  # for the step's commit

    def remember(self, policy: MemoryPolicy, call: RememberCall) -> dict[str, JsonValue]:
        """Have the policy decide about what the model asks for, and keep what it allows."""
        connection, claim = self._writing(), self._claim
        seen = history.load_seen(connection, claim)
        source = find_source(
            seen, call.value, call.user_said, run_id=claim.run_id, call_id=self._effect.call_id
        )
        words = find_words(seen, call.user_said)
        candidate = MemoryCandidate(
            owner_id=claim.user_id,
            key=call.key,
            value=call.value,
            kind=call.kind,
            explicit_user_request=words is not None
            and asking.asks_to_remember(call.user_said, policy.asks),
            sensitive=call.sensitive,
            namespace=call.namespace,
            expires_days=call.expires_days,
            source=source,
            approval_id=self._approval_id,
        )
        done = remembering.remember(
            connection,
            claim.tenant_id,
            candidate,
            policy,
            proposed_by=claim.agent,
            replaces_version=call.replaces_version,
        )
        decided: dict[str, JsonValue] = {
            "stored": done.decision.store,
            "reason": done.decision.reason.value,
        }
        self.events.append(
            Event(
                "memory.decided",
                {"call_id": self._effect.call_id, "decision_id": done.decision_id, **decided},
            )
        )
        return {**decided, "why": done.decision.why, "version": done.version}

    def recall(self, policy: MemoryPolicy, query: str, most: int) -> list[JsonValue]:
        """What a search finds, as data."""
        meaning = _meaning(self._database, nullcontext(), self._claim, policy, query)
        with self._reading() as connection:
            found = ranking.search(
                connection,
                self._claim.tenant_id,
                self._claim.user_id,
                query,
                namespaces=policy.namespaces,
                limit=most,
                meaning=meaning,
            )
        return [
            {
                **memory.address,
                "kind": memory.kind.value,
                "value": memory.value,
                "as_of": to_json(memory.changed_at),
            }
            for memory in found
        ]

    def forget(self, policy: MemoryPolicy, namespace: str, key: str, user_said: str) -> bool:
        """Forget what is there under the key, if the user's latest words ask for that."""
        connection, claim = self._writing(), self._claim
        if namespace not in policy.namespaces:
            known = ", ".join(policy.namespaces)
            raise InvalidArguments(f"Nothing was forgotten: the namespaces are {known}")
        remembering.lock_owner(connection, claim.tenant_id, claim.user_id)
        found = memories.find(connection, claim.tenant_id, claim.user_id, namespace, key)
        if found is None:
            return False
        latest = asking.latest_words(history.load_seen(connection, claim).said)
        if not asking.asks_to_forget(latest, user_said, key, found.value, policy.asks_back):
            raise InvalidArguments(
                "Nothing was forgotten: user_said must be, to the letter, of a sentence of what "
                "the user said last which asks to forget and names this memory, by its key or by "
                "what it says. Ask the user whether to forget it, by name"
            )
        return memories.forget(
            connection,
            claim.tenant_id,
            claim.user_id,
            namespace,
            key,
            by=claim.agent,
            run_id=claim.run_id,
        )

    def forget_everything(self, policy: MemoryPolicy, user_said: str) -> dict[str, JsonValue]:
        """Forget all that the agent may know of the user, if the latest words ask for just that.
        How the agent works, people have decided: that stays."""
        connection, claim = self._writing(), self._claim
        latest = asking.latest_words(history.load_seen(connection, claim).said)
        if not asking.asks_to_forget_all(latest, user_said, policy.asks_back):
            raise InvalidArguments(
                "Nothing was forgotten: what the user said last must ask for that in plain words "
                "and for nothing else, as in: Forget everything you know about me. user_said must "
                "be of these words, to the letter. Ask the user to say so, or what to forget"
            )
        count, stays = memories.forget_everything(
            connection,
            claim.tenant_id,
            claim.user_id,
            namespaces=policy.namespaces,
            by=claim.agent,
            run_id=claim.run_id,
        )
        return {"forgotten": count, "stays": [*stays]}

    def _writing(self) -> Connection:
        if self._connection is None:
            raise NoConnection("memories are changed in the step's own transaction")
        return self._connection

    def _reading(self) -> AbstractContextManager[Connection]:
        if self._connection is not None:
            return nullcontext(self._connection)
        return self._database.connect()


def without_secrets(loaded: LoadedAgent, response: ModelResponse) -> ModelResponse:
    """The response with what is sensitive in its proposals to remember something withheld."""
    if loaded.agent.memory is None:
        return response
    parts = [
        _withheld(part) if isinstance(part, ToolCallPart) and part.tool_name == REMEMBER else part
        for part in response.parts
    ]
    return replace(response, parts=parts)


def _withheld(part: ToolCallPart) -> ToolCallPart:
    try:
        arguments = parse_arguments(part.args)
    except InvalidArguments:
        # Stored as it was sent, for people to see what was wrong with it: or what is left of it.
        return replace(part, args=str(withhold(str(part.args))))
    kept = withhold(arguments)
    assert kept is None or isinstance(kept, dict)
    return part if kept == arguments else replace(part, args=kept)


def recalled(
    database: Database,
    active: AbstractContextManager[object],
    claim: Claim,
    policy: MemoryPolicy,
    messages: Sequence[ModelMessage],
) -> tuple[Sequence[ModelMessage], Recalled | None]:
    """The messages with what is recalled for them, before the user's latest words, and what that
    is. None if the policy shows nothing by itself. `active` is held to use the database."""
    if policy.recall_tokens == 0:
        return messages, None
    _, query = _latest_words(messages)
    meaning = _meaning(database, active, claim, policy, query)
    with active, database.begin() as connection:
        found = recalls.recall(connection, claim, policy, query, meaning)
    if not found.memories:
        return messages, found
    place, block = among(messages, found.memories)
    return [*messages[:place], block, *messages[place:]], found


def _meaning(
    database: Database,
    active: AbstractContextManager[object],
    claim: Claim,
    policy: MemoryPolicy,
    query: str,
) -> Meaning | None:
    return embedding.meaning_of(
        database,
        active,
        claim.tenant_id,
        claim.user_id,
        policy.embedder,
        query,
        namespaces=policy.namespaces,
        step=claim.step,
    )


def among(messages: Sequence[ModelMessage], shown: Sequence[Memory]) -> tuple[int, ModelMessage]:
    """The message that shows the memories, and before which of the others it is sent: before the
    user's latest words."""
    place, _ = _latest_words(messages)
    return place, user_message(quoted(shown), opens_run=False)


def _latest_words(messages: Sequence[ModelMessage]) -> tuple[int, str]:
    """The place of the user's latest words, where no call is parted from its result, and these."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, ModelRequest):
            said = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
            if said:
                return place, " ".join(each for each in said if isinstance(each, str))
    return 0, ""
