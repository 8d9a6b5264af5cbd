from pathlib import Path

from support.local_command import LocalCommand, write_job

# Rank 0 listens on the port of its job for a while, as torch's store does; rank 1 connects to it.
MEET = """
import os, socket, sys, time
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
name = os.environ["DDPJOB_UID"]
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        server.settimeout(200)
        connection, _ = server.accept()
        connection.sendall(name.encode())
else:
    deadline = time.monotonic() + 200
    while True:
        try:
            connection = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert connection.recv(100).decode() == name
    print("met my own job", flush=True)
"""


def test_two_runs_of_one_job_in_one_folder_do_not_interfere(tmp_path: Path) -> None:
    (tmp_path / "meet.py").write_text(MEET)
    file = write_job(tmp_path, {"nodes": 2, "command": ["python", "meet.py"], "restart": {"maxRestarts": 0}})
    with LocalCommand(file, tmp_path) as first, LocalCommand(file, tmp_path) as second:
        outcomes = [first.outcome(), second.outcome()]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0]
    assert [outcome.lines_of(1) for outcome in outcomes] == [["met my own job"]] * 2
    assert len(list(tmp_path.glob(".ddpjob/runs/*"))) == 2
