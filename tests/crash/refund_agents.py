"""The refund desk of `examples/` for workers that are killed, and what it would be with other
declarations of how a lost refund is found out about.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from celeriac import Agent
from celeriac.recovery import Recovery
from celeriac.scripted import ScriptedModel
from celeriac.tools import Tool
from examples import refund_desk as desk

FROZEN_TIMEOUT_SECONDS = 5.0

# The slow service of the tests takes longer than this, and nothing else should.
desk.REFUND_TIMEOUT_SECONDS = 2.5
desk.PAYMENT_TIMEOUT_SECONDS = 20.0  # to look up, by many at once


def _desk(name: str, issue_refund: Tool[..., Any]) -> Agent:
    tools: Sequence[Tool[..., Any]] = [
        desk.find_order,
        desk.check_policy,
        issue_refund,
        desk.tell_customer,
    ]
    model = ScriptedModel(desk.next_turn, "refund-desk-script")
    return Agent(name, model, tools=tools, input=desk.Request)


verifying = desk.refund_desk
"""As the example declares it: `verify` by the call's key, and looks again if that cannot tell."""

impatient = _desk(
    "refund-desk-impatient",
    replace(desk.issue_refund, timeout_seconds=FROZEN_TIMEOUT_SECONDS),
)
"""The same with a short timeout, for workers that are frozen beyond it."""

asking = _desk("refund-desk-asking", replace(desk.issue_refund, recovery=Recovery()))
"""Nothing declared: a person is asked."""

resending = _desk(
    "refund-desk-resending",
    replace(
        desk.issue_refund,
        recovery=Recovery(on_unknown="resend", visibility_seconds=desk.VISIBILITY_SECONDS),
    ),
)
"""Trusts the payment service to do things once per key."""
