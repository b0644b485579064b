/** Choice of one of the models that can be called. */

import { Select } from "@mantine/core";
import type { CatalogModel } from "@/screens/models/catalog-filters";

interface ModelSelectProps {
  label: string;
  models: CatalogModel[];
  value: string | null;
  onChange: (name: string | null) => void;
}

export function ModelSelect({ label, models, value, onChange }: ModelSelectProps) {
  return (
    <Select
      aria-label={label}
      placeholder="Choose a model"
      data={models.map((model) => model.name)}
      value={value}
      searchable
      allowDeselect={false}
      nothingFoundMessage="No model has this name."
      maxDropdownHeight={320}
      flex="1 1 240px"
      maw={420}
      onChange={onChange}
    />
  );
}
