// Write src/screens/fleet/world-outline.ts: the land of Natural Earth (public domain, 1:110m) as one SVG path in an
// equirectangular projection. Run in a folder with the packages: npm install --no-save world-atlas topojson-client
import { readFileSync, writeFileSync } from "node:fs";
import { feature } from "topojson-client";

const WIDTH = 1000;
const TOP_LATITUDE = 84;

const world = JSON.parse(readFileSync("node_modules/world-atlas/land-110m.json", "utf8"));
const land = feature(world, world.objects.land);
const polygons = (land.features ?? [land]).flatMap((each) => each.geometry.coordinates);
const rings = polygons.flat().filter((ring) => ring.some(([, latitude]) => latitude > -60));
const path = rings.flatMap(copies).map(toPath).join("");
writeFileSync(
  process.argv[2],
  `/** The world's land as an SVG path, from Natural Earth (public domain). Written by scripts/write-world-outline.mjs. */\n` +
    `export const WORLD_WIDTH = ${WIDTH};\nexport const WORLD_HEIGHT = 396;\nexport const TOP_LATITUDE = ${TOP_LATITUDE};\n` +
    `export const WORLD_OUTLINE =\n  "${path}";\n`,
);

/** Return the ring without jumps at the antimeridian, and a shifted copy if it leaves the map. */
function copies(ring) {
  let shift = 0;
  const unwrapped = ring.map(([longitude, latitude], index) => {
    const before = index === 0 ? longitude : ring[index - 1][0];
    if (longitude - before > 180) shift -= 360;
    if (longitude - before < -180) shift += 360;
    return [longitude + shift, latitude];
  });
  const longitudes = unwrapped.map(([longitude]) => longitude);
  const moved = (by) => unwrapped.map(([longitude, latitude]) => [longitude + by, latitude]);
  const found = [unwrapped];
  if (Math.max(...longitudes) > 180.5) found.push(moved(-360));
  if (Math.min(...longitudes) < -180.5) found.push(moved(360));
  return found;
}

function toPath(ring) {
  const points = ring.map(([longitude, latitude]) => [
    Math.round(((longitude + 180) / 360) * WIDTH),
    Math.round(((TOP_LATITUDE - latitude) / 360) * WIDTH),
  ]);
  const distinct = points.filter((point, i) => i === 0 || point[0] !== points[i - 1][0] || point[1] !== points[i - 1][1]);
  if (distinct.length < 4) return "";
  let [x, y] = distinct[0];
  let steps = "";
  for (const [nextX, nextY] of distinct.slice(1, -1)) {
    steps += ` ${nextX - x} ${nextY - y}`;
    [x, y] = [nextX, nextY];
  }
  return `M${distinct[0][0]} ${distinct[0][1]}l${steps.slice(1).replaceAll(" -", "-")}z`;
}
