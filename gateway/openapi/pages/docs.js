// Shows /openapi.json and tries its operations. Only text is ever put into the page; nothing is loaded from elsewhere.
"use strict";

const byId = (id) => document.getElementById(id);

function make(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

// Quotes text for a shell.
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

const chosenModel = () => byId("model").value.trim();

const accountUrl = () => `${location.origin}/client/v4/accounts/${encodeURIComponent(byId("account").value.trim() || "ACCOUNT_ID")}`;

function resolved(schema, all) {
  return schema && schema.$ref ? all.components.schemas[schema.$ref.split("/").pop()] : schema || {};
}

function kindOf(schema) {
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const limits = Object.entries(schema).filter(([key]) => /^(min|max|pattern|default)/.test(key));
  const kind = [].concat(schema.type || []).join(" or ");
  return [kind, ...limits.map(([key, value]) => `${key} ${JSON.stringify(value)}`)].filter(Boolean).join(", ");
}

function fieldsOf(schema, all, depth) {
  const list = make("ul", undefined, "fields");
  const variants = schema.oneOf || schema.anyOf;
  if (variants && !schema.properties) {
    variants.forEach((variant, index) => {
      const inner = resolved(variant, all);
      const item = make("li");
      item.append(make("span", `${index ? "or " : ""}${inner.title || inner.description || kindOf(inner)}`, "kind"));
      if (depth < 5) item.append(fieldsOf(inner, all, depth + 1));
      list.append(item);
    });
  }
  for (const [name, raw] of Object.entries(schema.properties || {})) {
    const field = resolved(raw, all);
    const item = make("li");
    item.append(make("code", name), " ");
    if ((schema.required || []).includes(name)) item.append(make("span", "required ", "must"));
    item.append(make("span", kindOf(field), "kind"));
    if (field.description) item.append(" ", field.description);
    const inner = resolved(field.items && (field.items.properties || field.items.oneOf || field.items.$ref) ? field.items : field, all);
    if (depth < 5 && (inner.properties || inner.oneOf || inner.anyOf)) {
      const more = make("details");
      more.append(make("summary", inner === field ? "its fields" : "of each"), fieldsOf(inner, all, depth + 1));
      item.append(more);
    }
    list.append(item);
  }
  return list;
}

// A body that an operation takes: what is required, in its plainest form.
function exampleOf(schema, all, name) {
  schema = resolved(schema, all);
  if (schema.examples) return schema.examples[0];
  if (schema.enum) return schema.enum[0];
  const variant = (schema.anyOf || schema.oneOf || [])[0];
  if (variant && !schema.properties) return exampleOf(variant, all, name);
  const kind = [].concat(schema.type)[0];
  if (kind === "object") {
    const wanted = Object.keys(schema.properties || {}).filter((key) => key === "model" || (schema.required || []).includes(key));
    return Object.fromEntries(wanted.map((key) => [key, exampleOf(schema.properties[key], all, key)]));
  }
  if (kind === "array") {
    const item = exampleOf(schema.items, all, name);
    if (name === "messages") Object.assign(item, { role: "user", content: "Hello" });
    return [item];
  }
  if (kind === "integer" || kind === "number") return name === "max_tokens" ? 64 : schema.minimum || 1;
  if (kind === "boolean") return false;
  return name === "model" ? chosenModel() : "Hello";
}

function tryIt(method, path, operation, all) {
  const form = make("form");
  const inputs = {};
  for (const parameter of operation.parameters || []) {
    if (parameter.name === "account_id") continue;
    const label = make("label", `${parameter.name} `);
    const input = make("input");
    input.value = parameter.required ? exampleOf(parameter.schema, all, parameter.name) : "";
    inputs[parameter.name] = { parameter, input };
    label.append(input);
    form.append(label);
  }
  const body = operation.requestBody && operation.requestBody.content["application/json"];
  const text = make("textarea");
  if (body) {
    text.value = JSON.stringify(exampleOf(body.schema, all, ""), null, 2);
    form.append(text);
  }
  const command = make("pre");
  const answer = make("pre");
  command.hidden = answer.hidden = true;

  function target() {
    const query = new URLSearchParams();
    let url = path.replace("{account_id}", encodeURIComponent(byId("account").value.trim()));
    for (const [name, { parameter, input }] of Object.entries(inputs)) {
      if (parameter.in === "path") url = url.replace(`{${name}}`, input.value.split("/").map(encodeURIComponent).join("/"));
      else if (parameter.in === "query" && input.value) query.set(name, input.value);
    }
    return location.origin + url + (query.size ? `?${query}` : "");
  }

  function given() {
    const named = Object.entries(inputs).filter(([, { parameter, input }]) => parameter.in === "header" && input.value);
    return named.map(([name, { input }]) => [name, input.value]);
  }

  const send = make("button", "Send");
  const show = make("button", "As a command");
  show.type = "button";
  show.addEventListener("click", () => {
    const parts = [`curl -X ${method.toUpperCase()} ${quoted(target())}`];
    if ((operation.security || []).length) parts.push('-H "Authorization: Bearer $API_TOKEN"');
    for (const [name, value] of given()) parts.push(`-H ${quoted(`${name}: ${value}`)}`);
    if (body) parts.push(`-d ${quoted(text.value)}`);
    command.textContent = parts.join(" \\\n  ");
    command.hidden = false;
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    answer.hidden = false;
    answer.textContent = "…";
    const headers = Object.fromEntries(given());
    if ((operation.security || []).length) headers.authorization = `Bearer ${byId("token").value.trim()}`;
    if (body) headers["content-type"] = "application/json";
    try {
      const response = await fetch(target(), { method: method.toUpperCase(), headers, body: body ? text.value : undefined });
      answer.textContent = `${response.status} ${response.statusText}\n`;
      for (const [name, value] of response.headers) answer.textContent += `${name}: ${value}\n`;
      answer.textContent += "\n";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) answer.textContent += piece.value;
    } catch (error) {
      answer.textContent += String(error);
    }
  });
  form.append(make("br"), send, show, command, answer);
  return form;
}

function operationOf(method, path, operation, all) {
  const box = make("details", undefined, "operation");
  box.id = operation.operationId;
  const summary = make("summary");
  summary.append(make("span", method.toUpperCase(), "method"), make("code", path), make("div", operation.summary));
  const inside = make("div");
  box.append(summary, inside);
  box.addEventListener("toggle", () => {
    if (!box.open || inside.childElementCount) return;
    if (operation.description) inside.append(make("p", operation.description));
    const body = operation.requestBody && operation.requestBody.content["application/json"];
    if (body) inside.append(make("h3", "Body"), fieldsOf(resolved(body.schema, all), all, 0));
    for (const [status, response] of Object.entries(operation.responses)) {
      const response_body = (response.content || {})["application/json"];
      const more = make("details");
      more.append(make("summary", `${status} – ${response.description} ${Object.keys(response.content || {}).join(", ")}`));
      if (response_body) more.append(fieldsOf(resolved(response_body.schema, all), all, 0));
      inside.append(more);
    }
    inside.append(make("h3", "Try it"), tryIt(method, path, operation, all));
  });
  return box;
}

const FIRST_MESSAGES = [{ role: "user", content: "What is the capital of France?" }];

const firstUrl = () => `${accountUrl()}/ai/run/${encodeURI(chosenModel()).replaceAll("?", "%3F").replaceAll("#", "%23")}`;

function showFirstCall() {
  byId("first-curl").textContent = [
    "export TOKEN=...   # your API token",
    `curl ${quoted(firstUrl())} \\`,
    '  -H "Authorization: Bearer $TOKEN" \\',
    `  -d ${quoted(JSON.stringify({ messages: FIRST_MESSAGES }))}`,
  ].join("\n");
  byId("first-python").textContent = [
    "import os",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${accountUrl()}/ai/v1`)}, api_key=os.environ["TOKEN"])`,
    `completion = client.chat.completions.create(model=${JSON.stringify(chosenModel())}, messages=${JSON.stringify(FIRST_MESSAGES)})`,
    "print(completion.choices[0].message.content)",
  ].join("\n");
}

async function sendFirstCall() {
  const answer = byId("first-answer");
  answer.hidden = false;
  answer.textContent = "…";
  const headers = { authorization: `Bearer ${byId("token").value.trim()}`, "content-type": "application/json" };
  try {
    const response = await fetch(firstUrl(), { method: "POST", headers, body: JSON.stringify({ messages: FIRST_MESSAGES }) });
    answer.textContent = `${response.status} ${response.statusText}\n\n${await response.text()}`;
  } catch (error) {
    answer.textContent = String(error);
  }
}

async function main() {
  showFirstCall();
  byId("credentials").addEventListener("input", showFirstCall);
  byId("first-send").addEventListener("click", sendFirstCall);
  const all = await (await fetch("/openapi.json")).json();
  byId("about").textContent = `Version ${all.info.version}. ${all.info.description}`;
  byId("credentials").addEventListener("submit", (event) => event.preventDefault());
  byId("operations").replaceChildren();
  for (const tag of all.tags) {
    byId("operations").append(make("h2", tag.name));
    byId("contents").append(make("h2", tag.name));
    for (const [path, methods] of Object.entries(all.paths)) {
      for (const [method, operation] of Object.entries(methods)) {
        if (!operation.tags.includes(tag.name)) continue;
        byId("operations").append(operationOf(method, path, operation, all));
        const link = make("a", `${method.toUpperCase()} ${path.replace("/client/v4/accounts/{account_id}", "…")}`);
        link.href = `#${operation.operationId}`;
        link.addEventListener("click", () => { byId(operation.operationId).open = true; });
        byId("contents").append(link);
      }
    }
  }
}

main().catch((error) => { byId("operations").textContent = String(error); });
