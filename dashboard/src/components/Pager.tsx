/** Page of a list that the gateway sends in pages; the page number is kept in the query string. */

import { Group, Pagination, Text } from "@mantine/core";
import { useSearchParams } from "react-router";
import type { ResultInfo } from "@/api/client";
import { replaceInQuery } from "@/lib/query-state";

/** Return the page number in the query string. */
export function usePageNumber(parameter = "page"): number {
  const [query] = useSearchParams();
  const number = Number(query.get(parameter) ?? "1");
  return Number.isInteger(number) && number > 0 ? number : 1;
}

export function Pager({ info, parameter = "page", noun }: { info: ResultInfo | undefined; parameter?: string; noun: string }) {
  const [, setQuery] = useSearchParams();
  const current = usePageNumber(parameter);
  const total = info?.total_count ?? 0;
  const numPages = Math.max(1, Math.ceil(total / Math.max(1, info?.per_page ?? 20)));
  if (total === 0) return null;
  return (
    <Group justify="space-between" mt="sm" gap="xs">
      <Text size="xs" c="dimmed">
        {total.toLocaleString("en-US")} {total === 1 ? singular(noun) : noun}
      </Text>
      {numPages > 1 && (
        <Pagination
          size="sm"
          total={numPages}
          value={current}
          onChange={(number) =>
            setQuery((before) => replaceInQuery(before, { [parameter]: String(number) }, { [parameter]: "1" }))
          }
          getControlProps={(control) => ({ "aria-label": `${control} page` })}
        />
      )}
    </Group>
  );
}

function singular(noun: string): string {
  return noun.endsWith("ies") ? `${noun.slice(0, -3)}y` : noun.replace(/s$/, "");
}
