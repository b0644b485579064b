/** Cost of this month: expected from the last seven days, and until now. */

import { StatCard } from "@/components/StatCard";
import { Money } from "@/components/values";
import { formatMoney } from "@/lib/format";
import { useForecast } from "./queries";

export function ForecastCard({ accountId }: { accountId: string }) {
  const { data, error } = useForecast(accountId);
  return (
    <StatCard
      label="Expected this month"
      isLoading={!data && !error}
      value={<Money value={data?.expected.usd} />}
      detail={data && `${formatMoney(data.used.usd)} until now`}
    />
  );
}
