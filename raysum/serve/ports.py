"""The gRPC port of each Ray Serve replica: restrict it to the address of the node, and require token authentication."""

from raysum.errors import UserError
from raysum.runtime.compat import requires_token, serve_grpc_at
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
