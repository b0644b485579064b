/** Outputs of tasks other than chat, recognized by their fields. Pure. */

import type { RunOutput } from "./run-model";

export interface Label {
  label: string;
  score: number;
  box?: { xmin: number; ymin: number; xmax: number; ymax: number };
}

export interface Segment {
  start: number;
  end: number;
  text: string;
}

export type Shown =
  | { kind: "image" | "audio"; blob: Blob }
  | { kind: "labels" | "boxes"; labels: Label[] }
  | { kind: "ranking"; scores: { id: number; score: number }[] }
  | { kind: "transcript"; text: string; segments: Segment[]; vtt: string }
  | { kind: "text"; text: string }
  | { kind: "other"; value: unknown };

type Fields = Record<string, unknown>;

/** Return what an output shows. */
export function shownOf(output: RunOutput): Shown {
  if (output.kind === "file") {
    const { blob } = output;
    if (blob.type.startsWith("image/")) return { kind: "image", blob };
    return blob.type.startsWith("audio/") ? { kind: "audio", blob } : { kind: "other", value: `${blob.size} bytes` };
  }
  const { value } = output;
  if (isLabels(value)) return { kind: value.some((each) => each.box) ? "boxes" : "labels", labels: value };
  return typeof value === "object" && value !== null ? shownOfFields(value as Fields) : { kind: "other", value };
}

function shownOfFields(fields: Fields): Shown {
  for (const kind of ["image", "audio"] as const) {
    const data = fields[kind];
    if (typeof data === "string") return { kind, blob: fileOf(data, kind) };
  }
  if (typeof fields.text === "string" && ("vtt" in fields || "segments" in fields)) {
    const segments = Array.isArray(fields.segments) ? (fields.segments as Segment[]) : [];
    return { kind: "transcript", text: fields.text, segments, vtt: typeof fields.vtt === "string" ? fields.vtt : "" };
  }
  if (isScores(fields.response)) return { kind: "ranking", scores: fields.response };
  const text = ["translated_text", "summary", "description", "response", "text"].map((name) => fields[name]).find(isText);
  return text === undefined ? { kind: "other", value: fields } : { kind: "text", text };
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}

function isLabels(value: unknown): value is Label[] {
  return Array.isArray(value) && value.every((each: unknown) => hasFields(each, "label", "score"));
}

function isScores(value: unknown): value is { id: number; score: number }[] {
  return Array.isArray(value) && value.length > 0 && value.every((each: unknown) => hasFields(each, "id", "score"));
}

function hasFields(value: unknown, ...names: string[]): boolean {
  return typeof value === "object" && value !== null && names.every((name) => name in value);
}

/** First characters of base64 text -> media type. */
const SIGNATURES: Record<string, string> = {
  iVBOR: "image/png",
  "/9j/": "image/jpeg",
  UklGR: "audio/wav",
  SUQz: "audio/mpeg",
  "//": "audio/mpeg",
  ZkxhQ: "audio/flac",
  T2dnU: "audio/ogg",
};

/** Return a file from base64 text or a `data:` URL. */
export function fileOf(text: string, kind: "image" | "audio"): Blob {
  const [, mediaType, data] = /^data:([\w/+.-]+);base64,(.*)$/s.exec(text) ?? [null, null, text];
  const found = Object.entries(SIGNATURES).find(([start, type]) => type.startsWith(kind) && data?.startsWith(start));
  const bytes = Uint8Array.from(atob(data ?? ""), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: mediaType ?? found?.[1] ?? `${kind}/*` });
}
