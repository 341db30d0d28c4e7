"""The other side of a test: libzmq and msgpack, as the engines use them.

Reads commands from standard input, one a line, and answers each with one line
of JSON, so that a test never has to guess when something has happened.
"""
import json
import struct
import sys
import threading

import msgpack
import zmq

ctx = zmq.Context()


def say(**kw):
    print(json.dumps(kw), flush=True)


def batch(seq, blocks=2):
    base = seq * 1000
    event = {
        "type": "BlockStored",
        "block_hashes": [2**63 + base + i for i in range(blocks)],
        "parent_block_hash": None,
        "token_ids": list(range(base, base + 16 * blocks)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return msgpack.packb([1700000000.5 + seq, [event], 0])


def endpoint(sock):
    return sock.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()


class Engine:
    """PUB and, if asked for, vLLM's ROUTER with its buffer."""

    def __init__(self, pub, bind, replay, topic_frame):
        self.pub = ctx.socket(zmq.XPUB)
        self.pub.setsockopt(zmq.LINGER, 0)
        (self.pub.bind if bind else self.pub.connect)(pub)
        self.buffer, self.topic_frame, self.router = [], topic_frame, None
        if replay:
            self.router = ctx.socket(zmq.ROUTER)
            self.router.setsockopt(zmq.LINGER, 0)
            self.router.bind(replay)
            self.stop = threading.Event()
            self.thread = threading.Thread(target=self.serve)
            self.thread.start()

    def publish(self, topic, seq):
        payload = batch(seq)
        self.buffer.append((topic.encode(), seq, payload))
        self.pub.send_multipart((topic.encode(), seq.to_bytes(8, "big"), payload))

    def serve(self):
        while not self.stop.is_set():
            if not self.router.poll(50):
                continue
            client, _, start = self.router.recv_multipart()
            start = int.from_bytes(start, "big")
            for topic, seq, payload in list(self.buffer):
                if seq >= start:
                    self.answer(client, topic, seq.to_bytes(8, "big"), payload)
            self.answer(client, b"", (-1).to_bytes(8, "big", signed=True), b"")

    def answer(self, client, topic, seq, payload):
        frames = (client, b"", topic, seq, payload) if self.topic_frame else (client, b"", seq, payload)
        self.router.send_multipart(frames)

    def close(self):
        if self.router:
            self.stop.set()
            self.thread.join()
            self.router.close()
        self.pub.close()


def main():
    engine = sub = None
    for line in sys.stdin:
        c = json.loads(line)
        do = c["do"]
        if do == "engine":
            engine = Engine(c["pub"], c["bind"], c.get("replay"), c.get("topic_frame", False))
            say(pub=endpoint(engine.pub), replay=endpoint(engine.router) if engine.router else "")
        elif do == "subscription":  # wait for one to arrive
            say(subscription=engine.pub.recv().hex() if engine.pub.poll(5000) else None)
        elif do == "publish":
            for topic in c["topics"]:
                engine.publish(topic, c["seq"])
                c["seq"] += 1
            say(seq=c["seq"])
        elif do == "stop":
            engine.close()
            say()
        elif do == "sub":
            sub = ctx.socket(zmq.SUB)
            sub.setsockopt(zmq.LINGER, 0)
            sub.setsockopt(zmq.HEARTBEAT_IVL, 100)
            for topic in c["topics"]:
                sub.setsockopt_string(zmq.SUBSCRIBE, topic)
            (sub.bind if c.get("bind") else sub.connect)(c["endpoint"])
            say(endpoint=endpoint(sub))
        elif do == "unsubscribe":
            sub.setsockopt_string(zmq.UNSUBSCRIBE, c["topic"])
            say()
        elif do == "recv":
            got = [f.hex() for f in sub.recv_multipart()] if sub.poll(c.get("wait", 5000)) else None
            say(frames=got)
        elif do == "replay":
            sock = ctx.socket(zmq.DEALER)
            sock.setsockopt(zmq.LINGER, 0)
            sock.connect(c["endpoint"])
            sock.send_multipart((b"", struct.pack(">Q", c["seq"])))
            answers = []
            while sock.poll(5000):
                frames = sock.recv_multipart()
                answers.append([f.hex() for f in frames])
                if b"\xff" * 8 in frames:
                    break
            sock.close()
            say(answers=answers)


main()
