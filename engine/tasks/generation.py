"""Turn one sequence's outputs into a call's events: text with log probabilities, parts of tool calls, and the end.

Counts every token once, including the special tokens around calls. Tokens are coalesced: outputs are held before their
conversion if all output is plain text, which saves most, and the pieces of other output are held after it, because text
may end the sequence. Knows nothing of prompts.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence

import msgspec

from engine.protocol.events import Failed, Finished, FinishReason, Started, Token, TokenLogprob, ToolCallDelta, Usage
from engine.ranks.output import SequenceOutput, TokenIdLogprob, join_outputs
from engine.ranks.replica import Replica
from engine.scheduling.sequence import SequenceRequest
from engine.tasks.generated_text import GeneratedText
from engine.tasks.prompt_echo import PromptEcho
from engine.tasks.token_coalescer import Piece, TokenCoalescer, join_pieces
from engine.tasks.work import Emit
from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer
from engine.tool_calls.call_parser import OutputPiece, ReasoningPiece, ToolCallPiece

logger = logging.getLogger(__name__)

_FAILURES: dict[str, Failed] = {
    "out_of_capacity": Failed("out_of_capacity", "the model has no capacity for this request now", is_retryable=True),
    "context_too_long": Failed("context_too_long", "the prompt does not fit into the KV cache of this model's replica"),
    "crashed": Failed("internal", "the process that ran the model ended", is_retryable=True, num_crashes=1),
    "error": Failed("internal", "the engine could not run this sequence"),
    "aborted": Failed("internal", "the model was unloaded", is_retryable=True),
    "bad_adapter": Failed(
        "invalid_input", "'/lora' cannot be used: its matrices are damaged, not finite, or more than this node keeps"
    ),
    "too_complex": Failed(
        "constraint_failed",
        "the requested output format is too complex: it exceeds 10,000 states or 4 ms per token",
    ),
}


class Generation:
    """A running sequence, created by `TextGenerator.start`."""

    def __init__(
        self,
        replica: Replica,
        tokenizer: Tokenizer,
        request: SequenceRequest,
        detokenizer: Detokenizer,
        generated: GeneratedText,
        emit: Emit,
        coalescer: TokenCoalescer,
        *,
        choice: int = 0,
        echo: PromptEcho | None = None,
        is_silent: bool = False,
    ) -> None:
        """`choice` numbers the choices of one prompt; each starts with `echo`. A silent choice emits nothing else. A
        constrained sequence ends with `length` only if its output is complete."""
        self._replica = replica
        self._tokenizer = tokenizer
        self._sequence_id = request.sequence_id
        self._num_prompt = len(request.prompt)
        self._num_tops = request.sampling.logprobs or 0
        self._emit = emit
        self._detokenizer = detokenizer
        self._generated = generated
        self._is_constrained = request.constraint is not None
        self._choice = choice
        self._echo = echo
        self._is_silent = is_silent
        self._held: list[SequenceOutput] = []  # outputs that wait for the prompt's echo
        self._is_plain = generated.is_plain and echo is None
        self._outputs = coalescer.open(self._process)  # used if the output is plain
        self._pieces = coalescer.open(self._send_pieces)  # used otherwise
        self._num_cached = 0
        self._num_tokens = 0
        self._num_reasoning = 0  # reasoning tokens
        self._device_us = 0
        self._prefill_us = 0  # device time until the first token
        self._arrived_s = time.perf_counter()
        self._first_token_s: float | None = None
        self._num_unemitted = 0  # tokens whose text is still held back
        self._logprobs: list[TokenLogprob] = []
        self._is_started = False
        self._is_over = False

    def cancel(self) -> Usage:
        """Emit the tokens that are held, and free the sequence's blocks within one step."""
        self._outputs.flush()
        if not self._is_over:
            self._pieces.flush()
            self._is_over = True
            self._replica.abort(self._sequence_id)
        return self._usage()

    def on_output(self, output: SequenceOutput) -> None:
        """Process one step's output of the sequence, or hold it. Any exception ends the call with an error."""
        if self._is_over:
            return
        if not self._is_plain:
            self._process([output])
        elif output.finish is None:
            self._outputs.add(output)
        elif output.token_ids:
            self._process([*self._outputs.take(), output])
        else:  # "stop" in the same output as a token would make the token an end token
            self._outputs.flush()
            self._process([output])

    def _process(self, outputs: Sequence[SequenceOutput]) -> None:
        if self._is_over:
            return
        try:
            output = join_outputs(outputs)
            if output.prompt_logprobs and self._echo is not None:
                self._echo.add(output.prompt_logprobs)
            elif self._is_waiting(output):
                self._held.append(output)
            else:
                self._convert(output)
        except Exception as error:
            logger.exception("output could not be converted to events: %s", type(error).__name__)
            self._replica.abort(self._sequence_id)
            self._end(msgspec.structs.replace(_FAILURES["error"], usage=self._usage()))

    def _is_waiting(self, output: SequenceOutput) -> bool:
        """Return True if the output must wait for the prompt's echo. Failures are emitted immediately."""
        if self._echo is None or self._echo.is_ready or output.finish not in (None, "stop", "length", "unclosed"):
            return False
        if not self._held:
            self._echo.when_ready(self._process_held)
        return True

    def _process_held(self) -> None:
        held, self._held = self._held, []
        for output in held:
            self.on_output(output)

    def _convert(self, output: SequenceOutput) -> None:
        self._num_cached = output.num_cached_tokens or self._num_cached
        self._device_us = output.device_us or self._device_us
        if self._is_silent and output.token_ids:
            self._start()
            self._end(Finished("length", self._usage()))
            self._replica.abort(self._sequence_id)
            return
        if output.token_ids and self._first_token_s is None:
            self._first_token_s, self._prefill_us = time.perf_counter(), self._device_us
        if output.token_ids:
            self._start()
            self._emit_pieces(self._pieces_of(output))
        if self._generated.is_over:
            self._finish("stop")
            self._replica.abort(self._sequence_id)
        elif output.finish == "length" and self._is_constrained and self._generated.num_calls:
            self._finish("stop")  # the calls are complete; there was no room for more
        elif output.finish == "stop" or output.finish == "length":
            self._finish(output.finish)
        elif output.finish == "unclosed":
            self._finish("length")
        elif output.finish is not None:
            self._end(msgspec.structs.replace(_FAILURES[output.finish], usage=self._usage()))

    def _finish(self, reason: FinishReason) -> None:
        self._start()
        self._emit_pieces(self._generated.flush(is_cut=reason == "length"))
        has_tool_calls = reason == "stop" and self._generated.num_calls > 0
        self._end(Finished("tool_calls" if has_tool_calls else reason, self._usage(), self._generated.stop))

    def _pieces_of(self, output: SequenceOutput) -> list[OutputPiece]:
        """Count the tokens up to the end of the output; return the pieces that can be emitted."""
        if self._is_plain and not output.logprobs:
            return self._plain_text_of(output)
        pieces: list[OutputPiece] = []
        last = len(output.token_ids) - 1
        for index, token_id in enumerate(output.token_ids):
            self._num_tokens += 1
            self._num_unemitted += 1
            is_end_token = index == last and output.finish == "stop"
            was_reasoning = self._generated.is_reasoning_text
            pieces += self._generated.push("" if is_end_token else self._detokenizer.push((token_id,)))
            if was_reasoning or self._generated.is_reasoning_text:
                self._num_reasoning += 1
                self._logprobs.clear()  # log probabilities are reported for content only, not for reasoning
            elif output.logprobs and not is_end_token:
                self._logprobs.append(self._logprob(token_id, output.logprobs[index]))
            if self._generated.is_over:
                break
        return pieces

    def _plain_text_of(self, output: SequenceOutput) -> list[OutputPiece]:
        """Count the tokens of plain text without log probabilities, and return the text."""
        token_ids = output.token_ids
        self._num_tokens += len(token_ids)
        self._num_unemitted += len(token_ids)
        text = self._detokenizer.push(token_ids[:-1] if output.finish == "stop" else token_ids)
        if not text and self._num_unemitted == self._num_tokens:
            self._outputs.send_next_at_once()  # the first token that completes a character is the first that is sent
        return [text] if text else []

    def _logprob(self, token_id: int, drawn: TokenIdLogprob) -> TokenLogprob:
        tokenizer, likeliest = self._tokenizer, drawn.top[: self._num_tops]
        top = tuple((tokenizer.token_text(other), logprob) for other, logprob in likeliest)
        text = tokenizer.token_text(token_id)
        token_bytes: tuple[bytes, ...] = ()
        if "\ufffd" in text or any("\ufffd" in other for other, _ in top):
            token_bytes = (tokenizer.token_bytes(token_id), *(tokenizer.token_bytes(other) for other, _ in likeliest))
        return TokenLogprob(text, drawn.logprob, top, token_bytes)

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._emit(Started(self._num_prompt, self._num_cached))
            if self._echo is not None:
                self._emit(self._echo.token(self._choice))

    def _emit_pieces(self, pieces: Sequence[OutputPiece]) -> None:
        """Emit pieces: adjacent texts as one event, with the log probabilities collected so far."""
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
                continue
            if text:
                self._emit_text(text)
            if isinstance(piece, ReasoningPiece):
                self._emit_reasoning(piece)
            else:
                self._emit_tool_call(piece)
            text = ""
        if text or not self._generated.is_parsed:
            self._emit_text(text)

    def _emit_text(self, text: str) -> None:
        if text or self._logprobs:
            self._emit_piece(Token(text, self._num_unemitted, tuple(self._logprobs), self._choice))
            self._num_unemitted = 0
            self._logprobs.clear()

    def _emit_reasoning(self, piece: ReasoningPiece) -> None:
        self._emit_piece(Token(piece.text, self._num_unemitted, choice=self._choice, is_reasoning=True))
        self._num_unemitted = 0

    def _emit_tool_call(self, piece: ToolCallPiece) -> None:
        """Emit a part of a tool call. Log probabilities of calls are not reported."""
        call_id = None if piece.name is None else f"call_{secrets.token_hex(12)}"
        self._emit_piece(
            ToolCallDelta(
                index=piece.index,
                id=call_id,
                name=piece.name,
                arguments=piece.arguments,
                num_tokens=self._num_unemitted,
                choice=self._choice,
            )
        )
        self._num_unemitted = 0
        self._logprobs.clear()

    def _emit_piece(self, piece: Piece) -> None:
        if self._is_plain:
            self._emit(piece)
        else:
            self._pieces.add(piece)

    def _send_pieces(self, pieces: Sequence[Piece]) -> None:
        for piece in join_pieces(pieces):
            self._emit(piece)

    def _end(self, event: Finished | Failed) -> None:
        self._outputs.take()  # nothing, unless a held output could not be converted
        self._pieces.flush()
        self._is_over = True
        self._emit(event)

    def _usage(self) -> Usage:
        queue_us, prefill_us, decode_us = self._phases()
        return Usage(
            prompt_tokens=self._num_prompt,
            cached_tokens=self._num_cached,
            completion_tokens=self._num_tokens,
            reasoning_tokens=self._num_reasoning,
            device_us=self._device_us,
            queue_us=queue_us,
            prefill_us=prefill_us,
            decode_us=decode_us,
        )

    def _phases(self) -> tuple[int, int, int]:
        """Return `queue_us`, `prefill_us` and `decode_us` of the usage, as of now."""
        now_s = time.perf_counter()
        first_us = round(((self._first_token_s or now_s) - self._arrived_s) * 1e6)
        prefill_us = min(self._prefill_us, first_us)
        decode_us = 0 if self._first_token_s is None else round((now_s - self._first_token_s) * 1e6)
        return first_us - prefill_us, prefill_us, decode_us
