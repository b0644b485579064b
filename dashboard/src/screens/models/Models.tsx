/** The catalog of models, one model's page, and what administrators publish and rename. */

import { Tabs } from "@mantine/core";
import { useParams } from "react-router";
import { usePermissions } from "@/app/session";
import { PageHeader } from "@/components/PageHeader";
import { useFilters } from "@/lib/query-state";
import { Aliases } from "./Aliases";
import { Catalog } from "./Catalog";
import { ModelPage } from "./ModelPage";
import { Publications } from "./Publications";
import { PublishButton } from "./PublishModel";

const FILTERS = { tab: "catalog" };

export default function Models() {
  const name = useParams()["*"] ?? "";
  return name === "" ? <ModelList /> : <ModelPage key={name} name={name} />;
}

function ModelList() {
  const permissions = usePermissions();
  const [filters, setFilters] = useFilters(FILTERS);
  const header = (
    <PageHeader
      title="Models"
      description="Models that this platform knows, with their prices and abilities."
      actions={permissions.changePlatform && <PublishButton />}
    />
  );
  if (!permissions.platform) {
    return (
      <>
        {header}
        <Catalog />
      </>
    );
  }
  return (
    <>
      {header}
      <Tabs value={filters.tab} onChange={(tab) => setFilters({ tab }, true)}>
        <Tabs.List aria-label="Views of the models" mb="md">
          <Tabs.Tab value="catalog">Catalog</Tabs.Tab>
          <Tabs.Tab value="publications">Publications</Tabs.Tab>
          <Tabs.Tab value="aliases">Aliases</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="catalog">
          <Catalog />
        </Tabs.Panel>
        <Tabs.Panel value="publications">
          <Publications />
        </Tabs.Panel>
        <Tabs.Panel value="aliases">
          <Aliases />
        </Tabs.Panel>
      </Tabs>
    </>
  );
}
