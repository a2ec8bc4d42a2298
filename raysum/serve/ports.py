"""The ports of Ray Serve: its replicas' gRPC ports are restricted to the node and need a token; HTTP can have TLS."""

import os
import ssl

from raysum.errors import UserError
from raysum.runtime.compat import requires_token, serve_grpc_at
from raysum.serve.config import ServeConfig
from raysum.serve.guard import LOCAL


def bind_to_node() -> None:
    """Restrict the gRPC port of this process. The constructor of a replica calls it before Ray opens the port.

    Does nothing outside Ray. Raises UserError if other machines can reach the node without token authentication.
    """
    import ray

    if not ray.is_initialized():
        return
    address = ray.util.get_node_ip_address()
    require_token(address)
    serve_grpc_at(address)


def require_token(host: str) -> None:
    """Raises UserError if other machines can reach ``host`` and the Ray cluster has no token authentication."""
    if host not in LOCAL and not requires_token():
        raise UserError(
            f"other machines reach {host}, and this Ray cluster has no token authentication, so anyone there could run "
            "code here; set RAY_AUTH_MODE=token, also where the cluster is started, or serve at 127.0.0.1"
        )


def tls_options(config: ServeConfig) -> dict[str, str]:
    """Return Ray Serve's HTTP options for TLS, none without a certificate. Raises UserError if it cannot be used."""
    certificate, key = config.tls_certificate, config.tls_key
    if not (certificate and key):
        if certificate or key:
            raise UserError("TLS needs both --tls-certificate and --tls-key")
        return {}
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")  # otherwise OpenSSL asks for a password
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        files = f"the certificate {certificate} with the key {key}"
        fix = "name PEM files that belong together, the key without a password"
        raise UserError(f"cannot use {files} ({getattr(error, 'strerror', None) or error}); {fix}") from None
    return {"ssl_certfile": os.path.abspath(certificate), "ssl_keyfile": os.path.abspath(key)}
