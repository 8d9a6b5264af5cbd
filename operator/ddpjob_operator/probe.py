"""`python -m ddpjob_operator.probe SOCKET PATH`: the kubelet's probe of the operator, run in its container.

It asks over a socket in the file system, which no other pod can reach: requests from the network, however many, cannot
keep the operator from answering. It imports little, because it runs every few seconds.
"""

import socket
import sys

#: Less than the probe's timeoutSeconds, so that the message below becomes part of the pod's Events.
SECONDS = 4.0


def main(path_of_socket: str, page: str) -> int:
    """0 if the operator answers this page with status 200; prints the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        try:
            connection.connect(path_of_socket)
            connection.sendall(f"GET {page} HTTP/1.1\r\n\r\n".encode())
            with connection.makefile("rb") as file:
                answer = file.read().decode()
        except OSError as error:
            print(f"no answer from the operator at {path_of_socket}: {error}")
            return 1
    head, _, text = answer.partition("\r\n\r\n")
    print(text.strip())
    return 0 if head.startswith("HTTP/1.1 200 ") else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
