"""The order desk's agent with a model that would deduct for ever."""

from celeriac import Agent
from celeriac.scripted import ScriptedModel, call
from examples import order_desk as desk
from tests.crash.agents import QUEUE

order_desk = Agent(
    "order-desk",
    ScriptedModel(lambda _: call("deduct_inventory", order_id="O-more", sku="A-7", quantity=1)),
    tools=[desk.check_inventory, desk.deduct_inventory, desk.notify_shipped],
    input=desk.Order,
    queue=QUEUE,
)
