/** Says that the gateway is unreachable, and reloads all data when it is back. */

import { Alert } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Unreachable } from "@/api/errors";
import { IconWifiOff } from "@/components/icons";

const PROBE_MS = 2_000;

export function ConnectionBanner() {
  const queries = useQueryClient();
  const [isLost, setIsLost] = useState(false);

  useEffect(
    () =>
      queries.getQueryCache().subscribe((event) => {
        if (event.type === "updated" && event.query.state.fetchFailureReason instanceof Unreachable) setIsLost(true);
      }),
    [queries],
  );

  useEffect(() => {
    if (!isLost) return;
    const timer = setInterval(() => {
      fetch("/healthz", { cache: "no-store" }).then(
        (response) => {
          if (!response.ok) return;
          setIsLost(false);
          void queries.invalidateQueries();
        },
        () => undefined,
      );
    }, PROBE_MS);
    return () => clearInterval(timer);
  }, [isLost, queries]);

  if (!isLost) return null;
  return (
    <Alert color="yellow" icon={<IconWifiOff />} mb="md" role="status">
      The gateway cannot be reached. The page shows the last known values and reconnects by itself.
    </Alert>
  );
}
