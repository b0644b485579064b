// The platform under test, read from environment variables, and helpers that all suites share.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const hearth = Object.fromEntries(
  ["origin", "account", "token", "chat_model", "embed_model"].map((name) => {
    const value = process.env[`HEARTH_CLIENT_${name.toUpperCase()}`];
    assert.ok(value, `HEARTH_CLIENT_${name.toUpperCase()} is not set: these suites are run by tests/clients`);
    return [name, value];
  }),
);
hearth.base_url = `${hearth.origin}/client/v4`;
hearth.ai_url = `${hearth.base_url}/accounts/${hearth.account}/ai`;

export const QUESTION = "What is the capital of France?";
export const MESSAGES = [{ role: "user", content: QUESTION }];

// The data of each server-sent event, without the final `[DONE]`, which is checked.
export function eventsOf(text) {
  const frames = text.split("\n\n").filter((frame) => frame !== "");
  assert.ok(frames.every((frame) => frame.startsWith("data: ")), text);
  assert.equal(frames.pop(), "data: [DONE]");
  return frames.map((frame) => JSON.parse(frame.slice("data: ".length)));
}

export async function temporaryFolder() {
  const folder = await mkdtemp(join(tmpdir(), "hearth-client-"));
  return { folder, remove: () => rm(folder, { recursive: true, force: true }) };
}

// A process. Its output is shown if it fails; `until` waits until it prints a line.
export class Process {
  constructor(command, args, options) {
    this.output = "";
    this.child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe", "pipe"], ...options });
    this.ended = new Promise((resolve) => this.child.once("close", resolve));
    for (const stream of this.child.stdio.slice(1)) stream.on("data", (data) => this.#hear(data));
  }

  #hear(data) {
    this.output += data;
    this.onOutput?.();
  }

  until(pattern, timeoutMs = 90_000) {
    return new Promise((resolve, reject) => {
      const fail = () => reject(new Error(`never printed ${pattern}:\n${this.output}`));
      const timer = setTimeout(fail, timeoutMs);
      this.ended.then(fail);
      this.onOutput = () => {
        const match = this.output.match(pattern);
        if (match === null) return;
        clearTimeout(timer);
        resolve(match);
      };
      this.onOutput();
    });
  }

  async stop() {
    this.child.kill("SIGTERM");
    const timer = setTimeout(() => this.child.kill("SIGKILL"), 5_000);
    await this.ended;
    clearTimeout(timer);
  }
}
