import { expect, it } from "vitest";
import { fileOf, shownOf } from "./run-output";

const shown = (value: unknown) => shownOf({ kind: "json", value });

it("labels with boxes are objects in an image, labels without are classes", () => {
  expect(shown([{ label: "cat", score: 0.9 }]).kind).toBe("labels");
  expect(shown([{ label: "cat", score: 0.9, box: { xmin: 1, ymin: 2, xmax: 3, ymax: 4 } }]).kind).toBe("boxes");
});

it("the result of each task is recognized by its fields", () => {
  expect(shown({ text: "Hello", vtt: "WEBVTT" })).toMatchObject({ kind: "transcript", text: "Hello", segments: [] });
  expect(shown({ response: [{ id: 1, score: 0.5 }] }).kind).toBe("ranking");
  expect(shown({ translated_text: "Hola" })).toEqual({ kind: "text", text: "Hola" });
  expect(shown({ unknown: 1 })).toEqual({ kind: "other", value: { unknown: 1 } });
});

it("a base64 file has the media type of its first bytes", () => {
  expect(fileOf("iVBORw0KGgo=", "image").type).toBe("image/png");
  expect(fileOf("UklGRg==", "audio").type).toBe("audio/wav");
  expect(fileOf("data:image/webp;base64,UklGRg==", "image").type).toBe("image/webp");
});
