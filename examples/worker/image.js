// An image Worker: POST a PNG or JPEG picture. Returns its type and size, read from its first bytes, and a model's comment
// on its size. The built-in model reads text only, so the picture itself is not sent to the model.

const MODEL = "@cf/hearth/spark";

export default {
  async fetch(request, env) {
    if (request.method !== "POST") {
      return new Response("Send a PNG or JPEG picture with POST.\n", { status: 405, headers: { allow: "POST" } });
    }
    const picture = await request.arrayBuffer();
    const found = pngSize(picture) ?? jpegSize(picture);
    if (found === undefined) {
      return Response.json({ error: "the body must be a PNG or JPEG picture" }, { status: 415 });
    }
    const { response } = await env.AI.run(MODEL, {
      prompt: `What is a picture of ${found.width} by ${found.height} pixels good for?`,
      max_tokens: 60,
    });
    return Response.json({ ...found, bytes: picture.byteLength, response });
  },
};

function pngSize(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 24 || view.getUint32(0) !== 0x89504e47) return undefined;
  return { type: "image/png", width: view.getUint32(16), height: view.getUint32(20) };
}

function jpegSize(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 4 || view.getUint16(0) !== 0xffd8) return undefined;
  for (let at = 2; at + 9 <= buffer.byteLength; at += 2 + view.getUint16(at + 2)) {
    const marker = view.getUint16(at);
    const isFrame = marker >= 0xffc0 && marker <= 0xffcf && ![0xffc4, 0xffc8, 0xffcc].includes(marker);
    if (isFrame) return { type: "image/jpeg", width: view.getUint16(at + 7), height: view.getUint16(at + 5) };
  }
  return undefined;
}
