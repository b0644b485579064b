/** PoPs as circles on an outline of the world. A PoP is a button that selects its nodes. */

import { Group, Stack, Text, UnstyledButton } from "@mantine/core";
import { memo, useMemo } from "react";
import type { FleetNode, Pop } from "./nodes";
import classes from "./fleet.module.css";
import { TOP_LATITUDE, WORLD_HEIGHT, WORLD_OUTLINE, WORLD_WIDTH } from "./world-outline";

const MAX_LABELS = 40; // more labels would cover each other
const SCALE = WORLD_WIDTH / 360;

interface Place {
  pop: string;
  label: string;
  x: number;
  y: number;
  numNodes: number;
  numReady: number;
}

interface WorldMapProps {
  nodes: FleetNode[];
  pops: Pop[];
  selected: string;
  onSelect: (pop: string) => void;
}

export function WorldMap({ nodes, pops, selected, onSelect }: WorldMapProps) {
  const { places, elsewhere } = useMemo(() => placesOf(nodes, pops), [nodes, pops]);
  if (places.length === 0) {
    return (
      <Stack gap="xs">
        <Text size="sm" c="dimmed">
          No node is in a PoP with a known location. A PoP that is named like an airport (FRA, IAD) has one, and operators
          can give locations to others.
        </Text>
        <Elsewhere places={elsewhere} selected={selected} onSelect={onSelect} />
      </Stack>
    );
  }
  return (
    <Stack gap={4}>
      <svg
        className={classes.map}
        viewBox={`0 0 ${WORLD_WIDTH} ${WORLD_HEIGHT}`}
        role="group"
        aria-label="World map of PoPs"
      >
        <Land />
        {places.map((place) => (
          <Marker
            key={place.pop}
            place={place}
            isSelected={place.pop === selected}
            hasLabel={places.length <= MAX_LABELS}
            onSelect={() => onSelect(place.pop === selected ? "" : place.pop)}
          />
        ))}
      </svg>
      <Elsewhere places={elsewhere} selected={selected} onSelect={onSelect} />
    </Stack>
  );
}

function Elsewhere({ places, selected, onSelect }: Pick<WorldMapProps, "selected" | "onSelect"> & { places: Place[] }) {
  if (places.length === 0) return null;
  return (
    <Group gap="xs">
      <Text size="xs" c="dimmed">
        Without a location:
      </Text>
      {places.map((place) => (
        <UnstyledButton
          key={place.pop}
          className={classes.popChip}
          aria-pressed={place.pop === selected}
          onClick={() => onSelect(place.pop === selected ? "" : place.pop)}
        >
          {place.pop} · {place.numNodes}
        </UnstyledButton>
      ))}
    </Group>
  );
}

const Land = memo(function Land() {
  return <path d={WORLD_OUTLINE} className={classes.land} aria-hidden="true" />;
});

interface MarkerProps {
  place: Place;
  isSelected: boolean;
  hasLabel: boolean;
  onSelect: () => void;
}

function Marker({ place, isSelected, hasLabel, onSelect }: MarkerProps) {
  const radius = Math.min(14, 5 + Math.sqrt(place.numNodes));
  const state = place.numReady === place.numNodes ? "ready" : place.numReady > 0 ? "partly" : "down";
  const name = `${place.label}: ${place.numReady} of ${place.numNodes} nodes ready`;
  return (
    <g
      role="button"
      tabIndex={0}
      aria-label={name}
      aria-pressed={isSelected}
      className={classes.marker}
      data-state={state}
      transform={`translate(${place.x} ${place.y})`}
      onClick={onSelect}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        onSelect();
      }}
    >
      <title>{name}</title>
      <g className={classes.markerBody}>
        <circle r={radius} />
        {place.numNodes > 1 && (
          <text className={classes.markerCount} dy="0.35em">
            {place.numNodes}
          </text>
        )}
        {hasLabel && (
          <text className={classes.markerLabel} y={-radius - 4}>
            {place.pop}
          </text>
        )}
      </g>
    </g>
  );
}

/** Return the PoPs that have nodes: those with a location, and the others. */
function placesOf(nodes: FleetNode[], pops: Pop[]): { places: Place[]; elsewhere: Place[] } {
  const known = new Map(pops.map((pop) => [pop.pop, pop]));
  const found = new Map<string, Place & { isLocated: boolean }>();
  for (const node of nodes) {
    let place = found.get(node.pop);
    if (!place) {
      const pop = known.get(node.pop);
      const { latitude, longitude } = pop ?? { latitude: null, longitude: null };
      place = {
        pop: node.pop,
        label: pop?.city ? `${node.pop}, ${pop.city}` : node.pop,
        x: ((longitude ?? 0) + 180) * SCALE,
        y: (TOP_LATITUDE - (latitude ?? 0)) * SCALE,
        numNodes: 0,
        numReady: 0,
        isLocated: typeof latitude === "number" && typeof longitude === "number",
      };
      found.set(node.pop, place);
    }
    place.numNodes += 1;
    if (node.state === "ready") place.numReady += 1;
  }
  const all = [...found.values()].sort((a, b) => b.numNodes - a.numNodes);
  return { places: all.filter((place) => place.isLocated), elsewhere: all.filter((place) => !place.isLocated) };
}
