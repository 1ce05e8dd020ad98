"""grpcio as client or server of a unix socket; run in a process of its own, for its threads. The Go program's twin."""

import sys
from concurrent import futures
from threading import Event

import grpc  # type: ignore[import-untyped]

OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


def client(path: str) -> None:
    with grpc.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:
        for size in (0, 1, 1000, 65535, 1 << 20, 9 << 20):
            print("echo", size, str(channel.unary_unary("/test/Echo")(b"\7" * size) == b"\7" * size).lower())
        with futures.ThreadPoolExecutor(20) as pool:
            replies = pool.map(lambda n: channel.unary_unary("/test/Echo")(b"%d" % n) == b"%d" % n, range(500))
            print("many", 500 - sum(replies))
        print("unknown", outcome(channel, "/test/Nothing")[0])
        print("refused", *outcome(channel, "/test/Refuse"))
        print("deadline", outcome(channel, "/test/Never", 0.05)[0])
        sent = b"\t" * ((4 << 20) - 5)
        print("stream", sum(reply == sent for reply in channel.unary_stream("/test/Repeat")(sent)), "true")


def outcome(channel: grpc.Channel, path: str, timeout: float | None = None) -> tuple[str, str]:
    try:
        channel.unary_unary(path)(b"x", timeout=timeout)
    except grpc.RpcError as error:
        return error.code().name.title().replace("_", ""), error.details()
    return "OK", ""


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if call.method == "/test/Echo":
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)
        if call.method == "/test/Repeat":
            return grpc.unary_stream_rpc_method_handler(lambda request, _: iter([request] * 3))
        if call.method == "/test/Never":
            return grpc.unary_unary_rpc_method_handler(never)
        return grpc.unary_unary_rpc_method_handler(refuse)


def never(_: bytes, context: grpc.ServicerContext) -> bytes:
    ended = Event()
    context.add_callback(ended.set)
    ended.wait()
    return b""


def refuse(_: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "naïve: 100 %\n")
    raise AssertionError


def server(path: str) -> None:
    served = grpc.server(futures.ThreadPoolExecutor(20), options=OPTIONS)
    served.add_generic_rpc_handlers((Service(),))
    served.add_insecure_port(f"unix:{path}")
    served.start()
    print("listening", flush=True)
    served.wait_for_termination()


if __name__ == "__main__":
    {"client": client, "server": server}[sys.argv[1]](sys.argv[2])
