"""Content that tells an agent what to do, whatever kind it says that it is.

A preference says something about the user; a procedure says what the agent shall do. The second is
for people to decide, so what reads like one is refused under any other name. Recognising it is a
help and no guarantee: what is recalled is quoted as data all the same (`celeriac.memory.recall`).
"""

import re
import unicodedata

_ORDERS = re.compile(
    r"""
    \b(?:
        always | never | whenever | from\ now\ on | henceforth | without\ asking
      | (?:ignore|disregard|forget|override|bypass|skip)\ (?:all|any|the|your|previous|prior|every|
            approval|approvals|rules?|checks?|instructions?)
      | (?:system|developer)\ (?:prompt|message|instructions?)
      | (?:your|the)\ instructions?
      | you\ (?:are|should|must|shall|will|have\ to|may|need\ to|can|do\ not|don't)
      | (?:do\ not|don't|must\ not)\ (?:ask|tell|mention|reveal|verify|check|confirm|refuse)
      | (?:the\ )?(?:assistant|agent|ai|model|bot)\ (?:should|must|shall|will|has\ to|may|needs\ to)
      | (?:before|after)\ (?:each|every|any)\ | (?:call|use|run|invoke)\ (?:the\ )?tool
    )
    | <\s*/?\s*(?:system|instructions?|assistant|tool)\b | \[/?INST\]
    | \#{2,}\s*(?:system|instruction)
    | ^\s*(?:system|assistant|developer)\s*:
    | (?:忽略|无视|必须|总是|永远|从现在起|系统提示|你(?:应该|必须|要|是)|不要(?:问|告诉|检查|确认))
    | \b(?:immer\ wenn|niemals|du\ (?:musst|sollst|bist)|ignoriere|ab\ sofort)\b
    | \b(?:toujours|jamais|tu\ dois|vous\ devez|ignore[rz]?\ les|désormais)\b
    | \b(?:siempre\ que|nunca|debes|ignora\ (?:las|todas))\b
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)


def reads_like_an_order(text: str) -> bool:
    """Whether `text` tells an agent what to do."""
    folded = unicodedata.normalize("NFKC", text)
    shown = "".join(each for each in folded if unicodedata.category(each) != "Cf")
    return _ORDERS.search(shown.replace("_", " ")) is not None
