# Today's practice, for `pdnode bench control`: the control plane of an engine's
# prefill and decode ranks as their handlers are written, in Python over pyzmq.
# State is in dictionaries under a lock; nothing is durable.
#
#   standin.py prefill            prints its port; answers ABORT with ABORT_ACK
#   standin.py decode PORT ROOMS  for each line of its input: aborts ROOMS rooms
#                                 at once and prints the latency of each in ns
#   standin.py handle N           takes N ABORTs from a socket's queue and handles
#                                 each; prints ABORTs a second
import sys
import threading
import time


def handle_abort(msg, rooms, lock):
    """One ABORT: mark the room failed, and who wants the ACK (wire.md 1.4)."""
    room = int(msg[1].decode("ascii"))
    ip, port = msg[2].decode("ascii"), int(msg[3].decode("ascii"))
    generation = int(msg[4].decode("ascii")) if len(msg) > 4 else None
    with lock:
        rooms[room] = "Failed"
    return room, f"tcp://{ip}:{port}", generation


def prefill():
    import zmq

    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    print(pull.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    rooms, lock, sockets = {}, threading.Lock(), {}
    while True:
        room, endpoint, generation = handle_abort(pull.recv_multipart(), rooms, lock)
        push = sockets.get(endpoint)
        if push is None:
            push = sockets[endpoint] = context.socket(zmq.PUSH)
            push.connect(endpoint)
        frames = [b"ABORT_ACK", str(room).encode("ascii"), b"0"]
        if generation is not None:
            frames.append(str(generation).encode("ascii"))
        push.send_multipart(frames)


def decode(port, rooms):
    import zmq

    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    own = pull.bind_to_random_port("tcp://127.0.0.1")
    push = context.socket(zmq.PUSH)
    push.connect(f"tcp://127.0.0.1:{port}")
    lock, armed, took, done = threading.Lock(), {}, [], threading.Semaphore(0)

    def acks():
        while True:
            msg = pull.recv_multipart()
            room, generation = int(msg[1].decode("ascii")), int(msg[3].decode("ascii"))
            with lock:
                expected, began, pages = armed[room]
                if generation == expected:
                    del armed[room]
                    pages.clear()  # free
                    took.append(time.perf_counter_ns() - began)
            done.release()

    threading.Thread(target=acks, daemon=True).start()
    generation = 0
    for _ in sys.stdin:
        for room in range(rooms):
            generation += 1
            with lock:
                armed[room] = (generation, time.perf_counter_ns(), [room])
            push.send_multipart([b"ABORT", str(room).encode("ascii"), b"127.0.0.1",
                                 str(own).encode("ascii"), str(generation).encode("ascii")])
        for _ in range(rooms):
            done.acquire()
        with lock:
            print(*took, flush=True)
            took.clear()


def handle(n):
    import zmq

    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for s in (pull, push):
        s.set_hwm(0)
    pull.bind("inproc://handler")
    push.connect("inproc://handler")
    frames = [b"ABORT", b"4242", b"10.0.0.1", b"5000", b"7"]
    for _ in range(n):
        push.send_multipart(frames)
    rooms, lock = {}, threading.Lock()
    began = time.perf_counter()
    for _ in range(n):
        handle_abort(pull.recv_multipart(), rooms, lock)
    print(n / (time.perf_counter() - began))
    context.destroy(0)


if __name__ == "__main__":
    if sys.argv[1] == "prefill":
        prefill()
    elif sys.argv[1] == "decode":
        decode(*map(int, sys.argv[2:4]))
    else:
        handle(int(sys.argv[2]))
