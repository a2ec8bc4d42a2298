"""The application of a run for a configuration file of Ray Serve, such as KubeRay's RayService or `serve deploy`."""

from typing import Any

from ray.serve import Application

from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.serve.access import with_access
from raysum.serve.config import ServeConfig
from raysum.serve.ports import require_token
from raysum.serve.replicas import application
from raysum.serve.served import all_served


def app(args: dict[str, Any]) -> Application:
    """Return the application for ``args``: the options of `raysum serve`, without `port` and `address`.

    `host` must be that of the file's `http_options`. At another address than 127.0.0.1, other machines may send
    requests: then the file `keys` must exist on every node, or `allow_anyone` be true. Raises UserError if an option is
    wrong, the run cannot be served, or the cluster needs a token.
    """
    config = with_access(section_of(ServeConfig, args))
    if config.tls_certificate or config.tls_key:
        raise UserError("set TLS in http_options of the configuration file: ssl_certfile and ssl_keyfile")
    require_token(config.host)
    return application(config, all_served(config))
