"""Steps in somebody's own Celery application, and what its settings must be for that."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from celery import Celery, signals
from kombu import Connection
from pydantic import SecretStr

from celeriac.errors import InvalidAgent, InvalidInput
from celeriac.secrets import redact_url
from celeriac.settings import Settings, load_settings
from celeriac_tasks.broker_url import check_broker_url

if TYPE_CHECKING:
    from celeriac.agent import Agent


def install(
    app: Celery, settings: Settings | None = None, agents: "Iterable[Agent] | None" = None
) -> None:
    """Make the workers of an existing Celery application execute steps beside its own tasks.

    Call it where the application is made, after its settings are. The broker is the application's.
    `settings` are those of the environment unless given; `agents` those of the modules that they
    name unless given, which are imported when a worker starts. Whoever only imports the application
    needs neither a database nor agents.

    A worker executes steps if it serves one of the queues in `settings.queues`: without `-Q` it
    serves them all, beside the application's own. Of its other tasks, and of its settings, nothing
    is changed.

    Raises `InvalidInput` if the application's settings would break what Celeriac promises; the
    worker checks them once more, with all that has been set later, and ends if they do.
    """
    chosen = settings if settings is not None else load_settings()
    given = None if agents is None else _by_name(agents)
    hosted_on(app, chosen)

    def configure() -> "tuple[Settings, Mapping[str, Agent]]":
        from celeriac.registry import load_agents

        hosted = _with_database(hosted_on(app, chosen))
        return hosted, load_agents(chosen.agent_modules) if given is None else given

    def begin(instance: Any, **_: Any) -> None:
        if instance.app is app:
            # Here, because a web process that imports the application needs none of it.
            from celeriac_tasks.hosted_worker import HostedWorker

            HostedWorker(app, chosen.queue_names, configure)

    signals.celeryd_init.connect(begin, weak=False)


def hosted_on(app: Celery, settings: Settings) -> Settings:
    """The settings with the application's broker. Raises `InvalidInput`, naming the setting."""
    conf: Any = app.conf
    url = _broker_url(conf)
    if settings.broker_url is not None:
        _check_same_broker(url, settings.broker_url.get_secret_value())
    if "json" not in {str(kind).removeprefix("application/") for kind in conf.accept_content}:
        raise InvalidInput(
            f"accept_content is {list(conf.accept_content)}: steps come as JSON, so add 'json'"
        )
    if prefix := conf.broker_transport_options.get("global_keyprefix"):
        raise InvalidInput(
            f"broker_transport_options sets global_keyprefix={prefix!r}: schedulers and clients "
            "would publish steps beside it. Leave it out, and use a Redis database of its own"
        )
    return settings.model_copy(update={"broker_url": SecretStr(url)})


def _broker_url(conf: Any) -> str:
    """Where the application's workers get their messages from."""
    url = conf.broker_read_url or conf.broker_url
    if not url:
        raise InvalidInput(
            "the application has no broker_url: give it the one that schedulers and clients have, "
            'Celery("name", broker=os.environ["CELERIAC_BROKER_URL"])'
        )
    if not isinstance(url, str) or ";" in url:
        raise InvalidInput(
            "broker_url names several brokers: a step that is published on one is not found by a "
            "worker that has gone to another. Name one"
        )
    try:
        load_settings(broker_url=url)
        check_broker_url(url)
    except InvalidInput as error:
        raise InvalidInput(
            f"the application's broker_url is not of a kind to use: {error}"
        ) from None
    return url


def _check_same_broker(url: str, celeriac_url: str) -> None:
    if _place(url) != _place(celeriac_url):
        raise InvalidInput(
            f"broker_url is {redact_url(url)} and CELERIAC_BROKER_URL is "
            f"{redact_url(celeriac_url)}: this application's workers would never see a step. Give "
            "both the same URL"
        )


def _place(url: str) -> tuple[object, ...]:
    """Server and database or virtual host, however the URL spells them."""
    connection: Any = Connection(url)
    host = "127.0.0.1" if connection.hostname in (None, "localhost") else connection.hostname
    port = connection.port or connection.get_transport_cls().default_port
    part = str(connection.virtual_host or "").strip("/")
    if part == "0":  # what Redis takes when none is named
        part = ""
    return connection.transport_cls.removeprefix("py"), host, port, part


def _by_name(agents: "Iterable[Agent]") -> "dict[str, Agent]":
    found: dict[str, Agent] = {}
    for agent in agents:
        if found.setdefault(agent.name, agent) is not agent:
            raise InvalidAgent(
                f"two agents are called {agent.name}; runs are found by that name, so give one of "
                "them another"
            )
    return found


def _with_database(settings: Settings) -> Settings:
    if settings.database_url is None:
        raise InvalidInput(
            "no database was named: set CELERIAC_DATABASE_URL, for example "
            "postgresql://user:password@host:5432/name"
        )
    return settings
