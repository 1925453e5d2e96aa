#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A language model with random weights behind HTTP, served by the continuous batching of the transformers library,
unmodified: a paged cache of keys and values takes nearly all of the GPU, as in other inference engines.

POST / with {"tokens": [numbers], "n": number} answers {"tokens": [numbers]}, chosen greedily. Each request is computed
in a batch of its own, as results in a larger one may differ in the last bits. GET / answers "OK"."""

import http.server
import json
import os
import queue
import threading

import gpu_steps

PARSER = gpu_steps.parser(__doc__)
PARSER.add_argument("--port-file", default="engine.port", help="the port is written here, once it answers")
PARSER.add_argument("--layers", type=int, default=24)
PARSER.add_argument("--memory", type=float, help="part of the GPU for the cache; default: the library's")
OPTIONS = PARSER.parse_args()
torch = gpu_steps.torch_with_gpus()
torch.utils.deterministic.fill_uninitialized_memory = False  # as without gpu_steps: the cache is not written before its use
transformers = gpu_steps.package("transformers")

WIDTH, HEADS, KEY_HEADS, VOCABULARY = 4096, 32, 8, 32000
ANSWER_S = 300


def model():
    """Of the shape of Llama 8B, with fewer layers."""
    config = transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=14336, num_hidden_layers=OPTIONS.layers, num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS, vocab_size=VOCABULARY, max_position_embeddings=8192, attn_implementation="sdpa",
        eos_token_id=None, bos_token_id=None, pad_token_id=0)
    torch.manual_seed(21)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


class Engine:
    """The library's manager, and the requests that wait for it."""

    def __init__(self):
        configuration = transformers.GenerationConfig(do_sample=False, max_new_tokens=16, eos_token_id=-1)
        words = {}
        if OPTIONS.memory:
            from transformers.generation import ContinuousBatchingConfig

            words["continuous_batching_config"] = ContinuousBatchingConfig(max_memory_percent=OPTIONS.memory)
        self.manager = model().init_continuous_batching(generation_config=configuration, **words)
        self.manager.start()
        self.requests = queue.Queue()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            tokens, n, answer = self.requests.get()
            which = self.manager.add_request(tokens, max_new_tokens=n)
            result = None
            while self.manager.is_running() and not (result and result.request_id == which and result.is_finished()):
                result = self.manager.get_result(timeout=1)
            answer.put(result.generated_tokens if result else None)

    def ask(self, tokens, n):
        answer = queue.Queue()
        self.requests.put((tokens, n, answer))
        return answer.get(timeout=ANSWER_S)


def handler(engine):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):  # noqa: N802 (the library's name)
            self.answer(200, b"OK")

        def do_POST(self):  # noqa: N802
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            tokens = engine.ask(request["tokens"], request["n"])
            self.answer(500 if tokens is None else 200, json.dumps({"tokens": tokens}).encode())

        def log_message(self, *_):
            pass

    return Handler


def main():
    engine = Engine()
    engine.ask([1, 2, 3], 2)  # the cache is made with the first request
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(engine))
    server.daemon_threads = True
    with open(OPTIONS.port_file, "w", encoding="ascii") as file:
        file.write(f"{server.server_port}\n")
    free, total = torch.cuda.mem_get_info()
    print(f"ready pid {os.getpid()} in use {(total - free) >> 20} MiB", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
