"""One vLLM server over HTTP: what it says of itself, answers, updates of weights or adapters.

Knows routes and their errors, nothing of models or of how requests are shared. Every failure is an EngineError that
names the server and what to do. What a connection loses is asked again a few times, where asking twice does no harm.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2

from peerwise.errors import EngineError, ModelError
from peerwise.rollout.vllm.abilities import GUIDE, Abilities
from peerwise.rollout.vllm.plugin import PREFIX
from peerwise.rollout.vllm.translate import Answer

OLDEST = (0, 32)
"""The first version with the reinforcement-learning routes this is written for."""
GENERATE = "/inference/v1/generate"
ROUTES = {
    GENERATE: "start it with --enable-scale-out",
    "/server_info": "start it with VLLM_SERVER_DEV_MODE=1 in its environment",
    "/weight_info": "start it with VLLM_SERVER_DEV_MODE=1 in its environment",
}
"""Routes that a server has only when asked for, and how to ask."""
LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further attempt."""
_LOST = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)
_NEVER_ARRIVED = (httpx2.ConnectError, httpx2.ConnectTimeout)
_BUSY = (429, 502, 503, 504)


class Server:
    """A server by its URL.

    Args:
        timeout: seconds that one call may take.
        waits: seconds before each further attempt after a connection was lost.
    """

    def __init__(self, url: str, *, timeout: float = 600.0, waits: Sequence[float] = WAITS) -> None:
        self.url, self.timeout, self.waits = url.rstrip("/"), timeout, tuple(waits)
        self._adapter: str | None = None
        # A proxy of the environment is for the internet, not for a server of one's own.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32)
        self._http = httpx2.Client(base_url=self.url, timeout=timeout, trust_env=False, limits=limits)

    def close(self) -> None:
        """Let go of the connections; the server drops what it was still answering."""
        self._http.close()

    def abilities(self) -> Abilities:
        """What the server is and can do.

        Raises:
            EngineError: nobody answers, or not a vLLM server.
            ModelError: too old, or started without what training needs.
        """
        version = str(self._field(self._call("GET", "/version"), "version"))
        number = re.match(r"(\d+)\.(\d+)", version)
        if number is None or (int(number[1]), int(number[2])) < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise ModelError(f"{self.url} runs vLLM {version}, expected {oldest} or later; update it")
        paths = self._field(self._call("GET", "/openapi.json"), "paths")
        for path, remedy in ROUTES.items():
            if path not in paths:
                raise ModelError(f"{self.url} (vLLM {version}) has no route {path}; {remedy} ({GUIDE})")
        info = self._field(self._call("GET", "/server_info", params={"config_format": "json"}), "vllm_config")
        try:
            model, transfer, lora = (
                info[name] or {} for name in ("model_config", "weight_transfer_config", "lora_config")
            )
            return Abilities(
                version=version,
                dtype=str(model["dtype"]).removeprefix("torch."),
                context=int(model["max_model_len"]),
                max_answers=int(info["scheduler_config"]["max_num_seqs"]),
                logprobs_mode=str(model["logprobs_mode"]),
                quantization=model["quantization"],
                backend=transfer.get("backend"),
                adapter_rank=int(lora.get("max_lora_rank", 0)),
                loads_adapters=LOAD_ADAPTER in paths,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._strange("/server_info", error) from error

    def generate(self, prompt_ids: Sequence[int], params: Mapping[str, Any]) -> list[Answer]:
        """`params["n"]` answers to a prompt, in the order of their seeds.

        Raises:
            EngineError: not reachable, refused, or an answer that is not one.
        """
        body = {"token_ids": list(prompt_ids), "sampling_params": dict(params), "model": self._adapter}
        choices = self._field(self._call("POST", GENERATE, json=body, twice=True), "choices")
        try:
            answers = {int(choice["index"]): _answer(choice) for choice in choices}
            return [answers[index] for index in range(params["n"])]
        except (KeyError, TypeError, ValueError) as error:
            raise self._strange(GENERATE, error) from error

    def weight_version(self) -> str:
        """The label of the weights it has now."""
        return str(self._field(self._call("GET", "/weight_info"), "weight_version"))

    def world_size(self) -> int:
        """How many workers take part in a transfer."""
        return int(self._field(self._call("GET", "/get_world_size"), "world_size"))

    def pause(self) -> None:
        """Finish what is being answered and take nothing up."""
        self._call("POST", "/pause", params={"mode": "wait"})

    def resume(self) -> None:
        """Answer again."""
        self._call("POST", "/resume")

    def label(self, version: str) -> None:
        """Name the weights it has now."""
        self._call("POST", "/update_weight_version", json={"new_version": version})

    def forget_prompts(self) -> None:
        """Empty the prefix cache: keys and values of other weights. Raises EngineError where it stays filled."""
        if self._field(self._call("POST", "/reset_prefix_cache"), "success") is not True:
            raise EngineError(
                f"{self.url} could not empty its prefix cache, which holds keys and values of the weights before; "
                "is somebody else using the server?"
            )

    # The four calls of vLLM's own protocol for whoever sends weights.

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Agree on how weights travel."""
        self._call("POST", "/init_weight_transfer_engine", json={"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begin an update; one that a trainer before left open is closed first."""
        try:
            self._call("POST", "/start_weight_update")
        except EngineError:
            for _ in range(2):
                try:
                    self._call("POST", "/finish_weight_update")
                    break
                except EngineError:
                    continue
            self._call("POST", "/start_weight_update")

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Take over some weights."""
        self._call("POST", "/update_weights", json={"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End an update."""
        body = None if weight_version is None else {"weight_version": weight_version}
        self._call("POST", "/finish_weight_update", json=body)

    def use_adapter(self, name: str, folder: Path) -> None:
        """Draw with this adapter from now on. Others of ours are unloaded, also those of a trainer before."""
        self._call("POST", LOAD_ADAPTER, json={"lora_name": name, "lora_path": str(folder)})
        self._adapter = name
        models = self._field(self._call("GET", "/v1/models"), "data")
        try:
            names = [str(model["id"]) for model in models if model["parent"] is not None]
        except (KeyError, TypeError) as error:
            raise self._strange("/v1/models", error) from error
        for before in names:
            if before.startswith(PREFIX) and before != name:
                self._call("POST", UNLOAD_ADAPTER, json={"lora_name": before})

    def _call(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        twice: bool = False,
    ) -> httpx2.Response:
        """An answer that is no refusal.

        Args:
            twice: whether the server may do it twice without harm. Then it is asked again after any lost connection,
                otherwise only where the call cannot have arrived.
        """
        again = _LOST if twice or method == "GET" else _NEVER_ARRIVED
        for wait in (*self.waits, None):
            try:
                response = self._http.request(method, path, json=json, params=params)
            except again as error:
                if wait is None:
                    raise self._gone(path, error) from error
            except httpx2.TimeoutException as error:
                raise EngineError(
                    f"{self.url} did not answer {path} within {self.timeout:g} s; is it overloaded or stuck? Raise "
                    "vllm.timeout, ask for fewer or shorter answers, or start it anew"
                ) from error
            except (httpx2.HTTPError, httpx2.InvalidURL, RuntimeError) as error:
                raise self._gone(path, error) from error
            else:
                if wait is None or response.status_code not in _BUSY:
                    return self._taken(path, response)
            time.sleep(wait)
        raise AssertionError("the last round returns or raises")

    def _taken(self, path: str, response: httpx2.Response) -> httpx2.Response:
        """The response itself. Raises EngineError where it says that the server refused."""
        if response.status_code == 404 and path == GENERATE:  # the route is there, so what is missing is the adapter
            raise EngineError(
                f"{self.url} no longer has the policy's adapter: it was started anew, or somebody else gave it one. Go "
                "on with peerwise train --resume RUN, which gives it the right one"
            )
        if response.status_code >= 400:
            raise EngineError(f"{self.url} refused {path} ({response.status_code}): {_said(response)}")
        return response

    def _field(self, response: httpx2.Response, name: str) -> Any:
        """What the JSON of an answer has under a name."""
        try:
            value = response.json()
        except ValueError as error:
            raise self._strange(response.url.path, error) from error
        if not isinstance(value, dict) or name not in value:
            raise EngineError(f"{self.url} does not answer as a vLLM server does: {name!r} is missing; check the URL")
        return value[name]

    def _gone(self, path: str, error: Exception) -> EngineError:
        return EngineError(
            f"no vLLM server answers at {self.url} ({path}: {str(error) or type(error).__name__}); start it (again), "
            f"then go on ({GUIDE})"
        )

    def _strange(self, path: str, error: Exception) -> EngineError:
        return EngineError(f"{self.url} answered {path} in a form that is not known: {type(error).__name__}: {error}")


def _answer(choice: Mapping[str, Any]) -> Answer:
    """One choice of a response. Raises KeyError, TypeError or ValueError for what is not one."""
    token_ids = tuple(map(int, choice["token_ids"]))
    content = choice["logprobs"]["content"] or []
    if tuple(int(entry["token_id"]) for entry in content) != token_ids:
        raise ValueError("its log-probs are of other tokens than its answer")
    return Answer(
        token_ids=token_ids,
        logprobs=tuple(float(entry["logprob"]) for entry in content),
        stop_text=choice["finish_reason"] == "stop" and isinstance(choice["stop_reason"], str),
        versions=tuple(str(span["version"]) for span in choice["weight_versions"] or ()),
    )


def _said(response: httpx2.Response) -> str:
    """What an error response says, on one line and not too long."""
    try:
        text = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = response.text
    text = " ".join(str(text).split())
    return text if len(text) <= 300 else text[:297] + "..."
