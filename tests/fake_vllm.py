"""A small stand-in for a vLLM server on loopback: its routes, its sampling parameters, its labels of weights.

It holds a tiny model and draws with our own engine, so what it answers can be compared with the trainer exactly. What
real servers do is in tests/real_vllm; this one is for what happens around them.
"""

from __future__ import annotations

import copy
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import PreTrainedModel

from peerwise.rollout.base import Request, SamplingParams
from peerwise.rollout.native.engine import NativeEngine

GENERATE = "/inference/v1/generate"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class Refused(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FakeVllm:
    """The state of a server. `calls` counts requests by path; `before` runs before a path is answered.

    Args:
        lora_rank: for a server that takes adapters: the largest rank.
    """

    def __init__(self, model: PreTrainedModel, decode: Callable[[Any], str], lora_rank: int | None = None) -> None:
        self.model, self.decode = model.eval(), decode
        self.version, self.label = "0.32.0", "default"
        self.info = {"max_model_len": 512, "dtype": "torch.float32", "logprobs_mode": "processed_logprobs"}
        self.info |= {"quantization": None}
        self.max_num_seqs = 8
        self.lora_rank = lora_rank
        self.backend: str | None = "peerwise_files" if lora_rank is None else None
        self.routes = [GENERATE, "/server_info", "/weight_info", *([] if lora_rank is None else [LOAD, UNLOAD])]
        self.adapters: dict[str, PreTrainedModel] = {}
        """The model with each adapter that is loaded, by the adapter's name."""
        self.folder: str | None = None
        self.updating = self.paused = self.deaf = False
        self.calls: Counter[str] = Counter()
        self.asked: list[dict[str, Any]] = []
        self.before: dict[str, Callable[[], None]] = {}
        self.spoil: Callable[[dict[str, Any]], Any] = lambda response: response
        self.lock = threading.Lock()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """The JSON for one request."""
        self.calls[path] += 1
        self.before.get(path, lambda: None)()
        if path == GENERATE:
            return self.spoil(self.generate(body))
        with self.lock:
            return getattr(self, f"{method}_{path[1:].replace('.', '_').replace('/', '_')}")(**body)

    def get_version(self) -> Any:
        return {"version": self.version}

    def get_health(self) -> Any:
        return {}

    def get_openapi_json(self) -> Any:
        return {"paths": {route: {} for route in self.routes}}

    def get_server_info(self) -> Any:
        transfer = None if self.backend is None else {"backend": self.backend}
        scheduler = {"max_num_seqs": self.max_num_seqs}
        return {
            "vllm_config": {
                "model_config": self.info,
                "scheduler_config": scheduler,
                "weight_transfer_config": transfer,
                "lora_config": None if self.lora_rank is None else {"max_lora_rank": self.lora_rank},
            }
        }

    def get_weight_info(self) -> Any:
        return {"weight_version": self.label}

    def post_pause(self) -> Any:
        self.paused = True
        return {}

    def post_resume(self) -> Any:
        self.paused = False
        return {}

    def post_update_weight_version(self, new_version: str) -> Any:
        self.label = new_version
        return {}

    def post_reset_prefix_cache(self) -> Any:
        return {"success": True}

    def post_init_weight_transfer_engine(self, init_info: dict[str, Any]) -> Any:
        self.folder = init_info["folder"]
        return {}

    def post_start_weight_update(self) -> Any:
        if self.updating:
            raise Refused(500, "start_weight_update called while a weight update is already active")
        self.updating = True
        return {}

    def post_update_weights(self, update_info: dict[str, Any]) -> Any:
        if not self.updating or not self.paused or self.folder is None:
            raise Refused(500, "not ready for weights")
        weights = load_file(Path(self.folder) / update_info["name"])
        if not self.deaf:
            try:
                self.model.load_state_dict(weights, strict=False)
            except RuntimeError as error:
                raise Refused(500, str(error)) from error
        return {}

    def post_finish_weight_update(self) -> Any:
        if not self.updating:
            raise Refused(500, "finish_weight_update called without a matching start_weight_update")
        self.updating = False
        return {}

    def get_v1_models(self) -> Any:
        return {"data": [{"id": "base", "parent": None}, *({"id": name, "parent": "base"} for name in self.adapters)]}

    def post_v1_load_lora_adapter(self, lora_name: str, lora_path: str) -> Any:
        if lora_name in self.adapters:
            raise Refused(400, f"The lora adapter '{lora_name}' has already been loaded.")
        rank = json.loads((Path(lora_path) / "adapter_config.json").read_text())["r"]
        if rank > (self.lora_rank or 0):
            raise Refused(500, f"LoRA rank {rank} is greater than max_lora_rank {self.lora_rank}.")
        model = copy.deepcopy(self.model)
        self.adapters[lora_name] = (
            model if self.deaf else PeftModel.from_pretrained(model, lora_path).merge_and_unload()
        )
        return f"Success: LoRA adapter '{lora_name}' added successfully."

    def post_v1_unload_lora_adapter(self, lora_name: str) -> Any:
        if self.adapters.pop(lora_name, None) is None:
            raise Refused(404, f"The lora adapter '{lora_name}' cannot be found.")
        return f"Success: LoRA adapter '{lora_name}' removed successfully."

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = body["sampling_params"]
        self.asked.append(asked)
        if asked["temperature"] == 0 and asked["n"] > 1:
            raise Refused(400, "n must be 1 when using greedy sampling")
        if asked["n"] > self.max_num_seqs:
            raise Refused(400, "n is too large")
        params = SamplingParams(
            max_new_tokens=asked["max_tokens"],
            min_new_tokens=asked["min_tokens"],
            logit_bias=tuple((int(token), bias) for token, bias in (asked["logit_bias"] or {}).items()),
            stop=tuple(asked["stop"] or ()),
            **{name: asked[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
        )
        with self.lock:
            if (name := body["model"]) not in (None, *self.adapters):
                raise Refused(404, f"The model `{name}` does not exist.")
            model = self.model if name is None else self.adapters[name]
            engine = NativeEngine(model, decode=self.decode, end_ids=frozenset(asked["stop_token_ids"]))
            keys = tuple(asked["seed"] + index for index in range(asked["n"]))
            (answers,) = engine.generate([Request(prompt_ids=tuple(body["token_ids"]), keys=keys)], params)
            label = self.label
        choices = []
        for index, answer in enumerate(answers):
            by_text = answer.finish == "stop" and answer.token_ids[-1] not in asked["stop_token_ids"]
            pairs = zip(answer.token_ids, answer.logprobs, strict=True)
            choices.append(
                {
                    "index": index,
                    "finish_reason": answer.finish,
                    "stop_reason": params.stop[0] if by_text else None,
                    "token_ids": list(answer.token_ids),
                    "weight_versions": [{"version": label, "start": 0, "end": len(answer.token_ids)}],
                    "logprobs": {"content": [{"token_id": token, "logprob": logprob} for token, logprob in pairs]},
                }
            )
        return {"choices": choices[::-1]}  # vLLM promises no order


@contextmanager
def served(fake: FakeVllm, port: int = 0) -> Iterator[str]:
    """The URL of the fake server, for the time of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply("get", {})

        def do_POST(self) -> None:
            size = int(self.headers.get("content-length", 0))
            self.reply("post", json.loads(self.rfile.read(size)) if size else {})

        def reply(self, method: str, body: dict[str, Any]) -> None:
            try:
                status, value = 200, fake.answer(method, urlsplit(self.path).path, body)
            except Refused as error:
                status, value = error.status, {"error": {"message": str(error)}}
            except ConnectionError:
                self.close_connection = True
                return
            content = (value if isinstance(value, str) else json.dumps(value)).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: Any) -> None:
            pass

    server = Quiet(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def moved(model: PreTrainedModel, seed: int) -> None:
    """Give a model other weights, in place."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
