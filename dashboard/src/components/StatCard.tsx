/** One figure with its label. */

import { Paper, Skeleton, Text } from "@mantine/core";
import type { ReactNode } from "react";

interface Props {
  label: string;
  value: ReactNode;
  detail?: ReactNode;
  isLoading?: boolean;
}

export function StatCard({ label, value, detail, isLoading = false }: Props) {
  return (
    <Paper p="sm" role="group" aria-label={label}>
      <Text size="xs" c="dimmed">
        {label}
      </Text>
      {isLoading ? (
        <Skeleton h={26} w={90} mt={4} />
      ) : (
        <Text fz={20} fw={600} lh={1.4} component="div" style={{ whiteSpace: "nowrap" }}>
          {value}
        </Text>
      )}
      {detail && (
        <Text size="xs" c="dimmed" component="div">
          {detail}
        </Text>
      )}
    </Paper>
  );
}
