/** Links to a model's page and to the playground; both keep the chosen account. */

import { Anchor } from "@mantine/core";
import { Link, useLocation } from "react-router";
import { accountQuery } from "@/app/Shell";
import { Name } from "@/components/values";

export function ModelLink({ name, maxWidth = "min(320px, 60vw)" }: { name: string; maxWidth?: number | string }) {
  const { search } = useLocation();
  return (
    <Anchor component={Link} size="sm" to={{ pathname: `/models/${pathOf(name)}`, search: accountQuery(search) }}>
      <Name value={name} maxWidth={maxWidth} />
    </Anchor>
  );
}

/** Return the name as part of a path. The slashes of the name stay. */
export function pathOf(name: string): string {
  return name.split("/").map(encodeURIComponent).join("/");
}
