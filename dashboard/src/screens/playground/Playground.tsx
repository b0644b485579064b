/** Try models: one panel per task. */

import { Alert, Button, Center, Loader, Tabs } from "@mantine/core";
import { Suspense } from "react";
import { Link, useLocation } from "react-router";
import { useAccountId, usePermissions } from "@/app/session";
import { EmptyState } from "@/components/EmptyState";
import { ErrorState } from "@/components/ErrorState";
import { IconBox, IconLock } from "@/components/icons";
import { PageHeader } from "@/components/PageHeader";
import { Panel as Box } from "@/components/Panel";
import { TabList } from "@/components/TabList";
import { useFilters } from "@/lib/query-state";
import { useOfferedModels } from "./models";
import { type Panel, PANELS } from "./panels";

const FILTERS = { panel: "chat", model: "", compare: "" };

export default function Playground() {
  const accountId = useAccountId();
  const permissions = usePermissions();
  const [filters, setFilters] = useFilters(FILTERS);
  const panel = PANELS.find((each) => each.key === filters.panel) ?? PANELS[0];
  if (!accountId || !panel) {
    return (
      <>
        <PageHeader title="Playground" />
        <Box>
          <EmptyState title="There is no account yet" action={<Button component={Link} to="/accounts">Go to accounts</Button>}>
            Calls belong to an account. Create one to try models.
          </EmptyState>
        </Box>
      </>
    );
  }
  return (
    <>
      <PageHeader title="Playground" />
      {!permissions.runModels(accountId) && (
        <Alert color="yellow" icon={<IconLock />} title="You cannot run models on this account" mb="sm">
          Only its administrators and developers may. Choose another account, or ask for an invitation.
        </Alert>
      )}
      <Tabs
        value={panel.key}
        onChange={(key) => setFilters({ panel: key, model: null, compare: null }, true)}
        mb="sm"
      >
        <TabList aria-label="Task">
          {PANELS.map((each) => (
            <Tabs.Tab key={each.key} value={each.key} leftSection={<each.icon size={14} />}>
              {each.title}
            </Tabs.Tab>
          ))}
        </TabList>
        <Tabs.Panel value={panel.key} pt="sm">
          {panel.task === null ? (
            <PanelView panel={panel} accountId={accountId} models={[]} />
          ) : (
            <TaskPanel key={`${accountId} ${panel.key}`} panel={panel} task={panel.task} accountId={accountId} />
          )}
        </Tabs.Panel>
      </Tabs>
    </>
  );
}

function TaskPanel({ panel, task, accountId }: { panel: Panel; task: string; accountId: string }) {
  const { models, isPending, error, refetch } = useOfferedModels(task);
  const { search } = useLocation();
  if (error) return <ErrorState error={error} title="The models could not be listed" onRetry={refetch} />;
  if (isPending) return <Waiting />;
  if (models.length === 0) {
    return (
      <Box>
        <EmptyState
          icon={IconBox}
          title={`No model for ${task} is published`}
          action={
            <Button component={Link} to={{ pathname: "/models", search }}>
              Browse the catalog
            </Button>
          }
        >
          A platform administrator can publish one from the hub or from a bucket.
        </EmptyState>
      </Box>
    );
  }
  return <PanelView panel={panel} accountId={accountId} models={models} />;
}

function PanelView(props: React.ComponentProps<Panel["component"]>) {
  return (
    <Suspense fallback={<Waiting />}>
      <props.panel.component {...props} />
    </Suspense>
  );
}

function Waiting() {
  return (
    <Center h={200}>
      <Loader role="status" size="sm" aria-label="Loading" />
    </Center>
  );
}
