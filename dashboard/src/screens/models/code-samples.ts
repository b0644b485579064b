/** Code samples for a call, as text that runs when copied. Pure. */

export type SampleLanguage = "curl" | "python" | "javascript" | "worker";

export const LANGUAGES: Record<SampleLanguage, string> = {
  curl: "curl",
  python: "Python",
  javascript: "JavaScript",
  worker: "Worker",
};

/** Which route a call uses. `run` is the native route of every task. */
export type SampleRoute = "chat/completions" | "completions" | "embeddings" | "run" | "tomarkdown";

export interface SampledCall {
  /** Scheme, host and port of the gateway, without a final slash. */
  origin: string;
  accountId: string;
  model: string;
  route: SampleRoute;
  /** The body without `model`. */
  body: Record<string, unknown>;
}

/** Return the sample of a call in a language. */
export function codeSample(call: SampledCall, language: SampleLanguage): string {
  if (call.route === "tomarkdown") return MARKDOWN_SAMPLES[language](call);
  return (call.route === "run" ? RUN_SAMPLES : OPENAI_SAMPLES)[language](call);
}

/** Return a small body that works for a task, or null if the task has no sample. */
export function sampleBody(task: string): { route: SampleRoute; body: Record<string, unknown> } {
  switch (task) {
    case "Text Generation":
      return {
        route: "chat/completions",
        body: { messages: [{ role: "user", content: "What is machine learning?" }], stream: true },
      };
    case "Text Embeddings":
      return { route: "embeddings", body: { input: ["a warm place", "a cold place"] } };
    case "Text Classification":
      return { route: "run", body: { text: "This pizza is great!" } };
    case "Translation":
      return { route: "run", body: { text: "Good morning", source_lang: "en", target_lang: "fr" } };
    case "Summarization":
      return { route: "run", body: { input_text: "A long text that needs a summary.", max_length: 100 } };
    case "Text-to-Image":
      return { route: "run", body: { prompt: "A lighthouse at dusk" } };
    case "Text-to-Speech":
      return { route: "run", body: { text: "Hello from this model." } };
    default:
      return { route: "run", body: { prompt: "Hello" } };
  }
}

type Samples = Record<SampleLanguage, (call: SampledCall) => string>;

const base = (call: SampledCall) => `${call.origin}/client/v4/accounts/${call.accountId}/ai`;

const OPENAI_SAMPLES: Samples = {
  curl: (call) => curl(`${base(call)}/v1/${call.route}`, { model: call.model, ...call.body }),
  python: (call) => {
    const method = call.route.replace("/", ".");
    const [known, extra] = splitExtra(call.body);
    const entries: [string, unknown][] = [["model", call.model], ...Object.entries(known)];
    if (Object.keys(extra).length > 0) entries.push(["extra_body", extra]);
    const lines = entries.map(([name, value]) => `    ${name}=${python(value, 4)},`);
    return [
      "import os",
      "",
      "from openai import OpenAI",
      "",
      "client = OpenAI(",
      `    base_url=${text(`${base(call)}/v1`)},`,
      '    api_key=os.environ["TOKEN"],',
      ")",
      `response = client.${method}.create(`,
      ...lines,
      ")",
      ...pythonOutput(call),
      "",
    ].join("\n");
  },
  javascript: (call) => {
    const method = call.route.replace("/", ".");
    return [
      'import OpenAI from "openai";',
      "",
      "const client = new OpenAI({",
      `  baseURL: ${text(`${base(call)}/v1`)},`,
      "  apiKey: process.env.TOKEN,",
      "});",
      `const response = await client.${method}.create(${json({ model: call.model, ...call.body })});`,
      ...javascriptOutput(call),
      "",
    ].join("\n");
  },
  worker: (call) => worker(call.model, nativeBody(call)),
};

const RUN_SAMPLES: Samples = {
  curl: (call) => curl(`${base(call)}/run/${call.model}`, call.body),
  python: (call) =>
    [
      "import os",
      "",
      "import httpx",
      "",
      "response = httpx.post(",
      `    ${text(`${base(call)}/run/${call.model}`)},`,
      '    headers={"authorization": f"Bearer {os.environ[\'TOKEN\']}"},',
      `    json=${python(call.body, 4)},`,
      "    timeout=120,",
      ")",
      "response.raise_for_status()",
      'print(response.json()["result"])',
      "",
    ].join("\n"),
  javascript: (call) =>
    [
      `const response = await fetch(${text(`${base(call)}/run/${call.model}`)}, {`,
      '  method: "POST",',
      "  headers: { authorization: `Bearer ${process.env.TOKEN}` },",
      `  body: JSON.stringify(${json(call.body, 2)}),`,
      "});",
      "console.log((await response.json()).result);",
      "",
    ].join("\n"),
  worker: (call) => worker(call.model, call.body),
};

const MARKDOWN_SAMPLES: Samples = {
  curl: (call) =>
    [`curl ${shell(`${base(call)}/tomarkdown`)} \\`, '  -H "Authorization: Bearer $TOKEN" \\', "  -F files=@report.docx", ""].join(
      "\n",
    ),
  python: (call) =>
    [
      "import os",
      "",
      "import httpx",
      "",
      "response = httpx.post(",
      `    ${text(`${base(call)}/tomarkdown`)},`,
      '    headers={"authorization": f"Bearer {os.environ[\'TOKEN\']}"},',
      '    files={"files": open("report.docx", "rb")},',
      "    timeout=120,",
      ")",
      "response.raise_for_status()",
      'print(response.json()["result"][0]["data"])',
      "",
    ].join("\n"),
  javascript: (call) =>
    [
      'import { openAsBlob } from "node:fs";',
      "",
      "const form = new FormData();",
      'form.append("files", await openAsBlob("report.docx"), "report.docx");',
      `const response = await fetch(${text(`${base(call)}/tomarkdown`)}, {`,
      '  method: "POST",',
      "  headers: { authorization: `Bearer ${process.env.TOKEN}` },",
      "  body: form,",
      "});",
      "console.log((await response.json()).result[0].data);",
      "",
    ].join("\n"),
  worker: () =>
    [
      "export default {",
      "  async fetch(request, env) {",
      "    const blob = await request.blob();",
      '    const [converted] = await env.AI.toMarkdown([{ name: "report.docx", blob }]);',
      "    return new Response(converted.data);",
      "  },",
      "};",
      "",
    ].join("\n"),
};

function curl(url: string, body: Record<string, unknown>): string {
  const flag = body.stream === true ? "-N " : "";
  return [
    `curl ${flag}${shell(url)} \\`,
    '  -H "Authorization: Bearer $TOKEN" \\',
    `  -d ${shell(JSON.stringify(body, null, 2))}`,
    "",
  ].join("\n");
}

function worker(model: string, body: Record<string, unknown>): string {
  const isStream = body.stream === true;
  return [
    "export default {",
    "  async fetch(request, env) {",
    `    const response = await env.AI.run(${text(model)}, ${json(body, 4)});`,
    isStream
      ? '    return new Response(response, { headers: { "content-type": "text/event-stream" } });'
      : "    return Response.json(response);",
    "  },",
    "};",
    "",
  ].join("\n");
}

/** Return the body of the native route, whose field for texts to embed is `text`. */
function nativeBody(call: SampledCall): Record<string, unknown> {
  if (call.route !== "embeddings") return withoutOpenAiFields(call.body);
  const { input, ...rest } = call.body;
  return { text: input, ...rest };
}

function withoutOpenAiFields(body: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(body).filter(([name]) => name !== "stream_options"));
}

function pythonOutput(call: SampledCall): string[] {
  if (call.route === "embeddings") return ["print(len(response.data), len(response.data[0].embedding))"];
  const isChat = call.route === "chat/completions";
  if (call.body.stream === true) {
    const piece = isChat ? 'chunk.choices[0].delta.content or ""' : "chunk.choices[0].text";
    return ["for chunk in response:", "    if chunk.choices:", `        print(${piece}, end="", flush=True)`];
  }
  return [isChat ? "print(response.choices[0].message)" : "print(response.choices[0].text)"];
}

function javascriptOutput(call: SampledCall): string[] {
  if (call.route === "embeddings") return ["console.log(response.data.length, response.data[0].embedding.length);"];
  const isChat = call.route === "chat/completions";
  if (call.body.stream === true) {
    const piece = isChat ? "delta?.content" : "text";
    return [
      "for await (const chunk of response) {",
      `  process.stdout.write(chunk.choices[0]?.${piece} ?? "");`,
      "}",
    ];
  }
  return [isChat ? "console.log(response.choices[0].message);" : "console.log(response.choices[0].text);"];
}

// OpenAI's Python client accepts only the fields that it knows; others go into `extra_body`.
const EXTRA_FIELDS = new Set([
  "chat_template_kwargs",
  "guided_choice",
  "guided_grammar",
  "guided_json",
  "guided_regex",
  "ignore_eos",
  "lora",
  "min_p",
  "min_tokens",
  "raw",
  "repetition_penalty",
  "stop_token_ids",
  "structured_outputs",
  "top_k",
]);

function splitExtra(body: Record<string, unknown>): [Record<string, unknown>, Record<string, unknown>] {
  const entries = Object.entries(body);
  return [
    Object.fromEntries(entries.filter(([name]) => !EXTRA_FIELDS.has(name))),
    Object.fromEntries(entries.filter(([name]) => EXTRA_FIELDS.has(name))),
  ];
}

function shell(value: string): string {
  return `'${value.replaceAll("'", "'\\''")}'`;
}

function text(value: string): string {
  return JSON.stringify(value);
}

function json(value: unknown, indent = 0): string {
  return JSON.stringify(value, null, 2).replaceAll("\n", `\n${" ".repeat(indent)}`);
}

/** Return a value as a Python literal. */
function python(value: unknown, indent: number): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return block("[", "]", value.map((item) => python(item, indent + 4)), indent);
  if (typeof value === "object") {
    const items = Object.entries(value).map(([name, item]) => `${text(name)}: ${python(item, indent + 4)}`);
    return block("{", "}", items, indent);
  }
  return JSON.stringify(value);
}

function block(open: string, close: string, items: string[], indent: number): string {
  const line = open + items.join(", ") + close;
  if (line.length <= 80 && !line.includes("\n")) return line;
  const inner = items.map((item) => `${" ".repeat(indent + 4)}${item},\n`).join("");
  return `${open}\n${inner}${" ".repeat(indent)}${close}`;
}
