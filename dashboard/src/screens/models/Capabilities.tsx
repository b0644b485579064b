import { Badge, Group } from "@mantine/core";
import { CAPABILITIES, type CatalogModel, deprecationOf, hasCapability } from "./catalog-filters";

/** Abilities of a model, and its planned end, as badges. */
export function Capabilities({ model, isInstalled }: { model: CatalogModel; isInstalled?: boolean }) {
  const names = Object.keys(CAPABILITIES).filter((name) => hasCapability(model, name));
  const end = deprecationOf(model);
  return (
    <Group gap={4}>
      {isInstalled && (
        <Badge color="teal" miw="max-content">
          Available
        </Badge>
      )}
      {names.map((name) => (
        <Badge key={name} color="gray" miw="max-content">
          {CAPABILITIES[name]}
        </Badge>
      ))}
      {end && <Badge color="yellow">Until {end.slice(0, 10)}</Badge>}
    </Group>
  );
}
