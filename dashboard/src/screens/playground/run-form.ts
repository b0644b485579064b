/** The form of a model that runs one input at a time, derived from its schema, and the request body. Pure. */

import { bodyOf, errorOf, type Parameter, parametersOf, type Schema, type Values } from "./schema-parameters";

export type InputKind = "text" | "lines" | "image" | "audio";

export interface RunInput {
  name: string;
  label: string;
  kind: InputKind;
  isRequired: boolean;
  /** Files are sent as base64 text, or as an array of bytes if the schema accepts nothing else. */
  isByteArray: boolean;
}

export interface RunForm {
  inputs: RunInput[];
  parameters: Parameter[];
  /** The fields are sent as multipart/form-data. */
  isMultipart: boolean;
}

/** A value that the user entered: text, or a file. */
export type InputValues = Record<string, string | File | null>;

const INPUTS: Record<string, { kind: InputKind; label: string }> = {
  text: { kind: "text", label: "Text" },
  prompt: { kind: "text", label: "Prompt" },
  input_text: { kind: "text", label: "Text" },
  query: { kind: "text", label: "Query" },
  contexts: { kind: "lines", label: "Documents" },
  audio: { kind: "audio", label: "Recording" },
  image: { kind: "image", label: "Image" },
  image_b64: { kind: "image", label: "Image" },
  mask: { kind: "image", label: "Mask" },
};
const HIDDEN = new Set([...Object.keys(INPUTS), "requests", "stream", "raw", "lora"]);
const PROMPT_ONLY: Schema = { type: "object", properties: { prompt: { type: "string" } }, required: ["prompt"] };

/** Return the form of an input schema. The variant for batches and the one for a bare file are not used. */
export function formOf(schema: Schema): RunForm {
  const variants = (schema.oneOf ?? [schema]).filter((variant) => variant.properties && !variant.properties.requests);
  const variant = variants[0] ?? PROMPT_ONLY;
  const isMultipart = variant.properties?.multipart !== undefined;
  const used = isMultipart ? PROMPT_ONLY : variant;
  const properties = used.properties ?? {};
  const required = new Set(used.required ?? []);
  const inputs = Object.entries(INPUTS).flatMap(([name, { kind, label }]) => {
    const property = properties[name];
    // `image_b64` is the shorter form of `image`.
    if (!property || (name === "image" && properties.image_b64)) return [];
    return [{ name, label, kind, isRequired: required.has(name), isByteArray: acceptsOnlyArrays(property) }];
  });
  // A file is what such a model works on, even if its schema also accepts a body without one.
  const isFileTask = inputs.every((input) => input.kind === "image" || input.kind === "audio");
  return {
    inputs: isFileTask ? inputs.map((input) => ({ ...input, isRequired: true })) : inputs,
    parameters: parametersOf(used, HIDDEN),
    isMultipart,
  };
}

function acceptsOnlyArrays(property: Schema): boolean {
  const types = [property.type ?? []].flat();
  return types.length > 0 && types.every((type) => type === "array");
}

/** Return true if all required inputs and parameters have a valid value. */
export function isComplete(form: RunForm, inputs: InputValues, values: Values): boolean {
  const hasInputs = form.inputs.every((input) => !input.isRequired || isFilled(inputs[input.name]));
  return hasInputs && form.parameters.every((parameter) => errorOf(parameter, values[parameter.name]) === null);
}

function isFilled(value: string | File | null | undefined): boolean {
  return typeof value === "string" ? value.trim() !== "" : value != null;
}

/** Return the lines of a text that are not empty. */
export function linesOf(text: string): string[] {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

/** Return the fields of a request. Files become base64 text or arrays of bytes. */
export async function fieldsOf(form: RunForm, inputs: InputValues, values: Values): Promise<Values> {
  const fields: Values = {};
  for (const input of form.inputs) {
    const value = inputs[input.name];
    if (value instanceof File) fields[input.name] = await encode(value, input.isByteArray);
    else if (isFilled(value)) {
      fields[input.name] = input.kind === "lines" ? linesOf(value as string).map((text) => ({ text })) : value;
    }
  }
  return { ...fields, ...bodyOf(form.parameters, values) };
}

/** Return the fields for code samples: the name of a file stands for its content. */
export function sampleFields(form: RunForm, inputs: InputValues, values: Values): Values {
  const fields: Values = {};
  for (const { name, kind } of form.inputs) {
    const value = inputs[name];
    if (value instanceof File) fields[name] = `<base64 of ${value.name}>`;
    else if (isFilled(value)) fields[name] = kind === "lines" ? linesOf(value as string).map((text) => ({ text })) : value;
  }
  return { ...fields, ...bodyOf(form.parameters, values) };
}

async function encode(file: File, isByteArray: boolean): Promise<string | number[]> {
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (isByteArray) return Array.from(bytes);
  let text = "";
  for (let start = 0; start < bytes.length; start += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  }
  return btoa(text);
}
