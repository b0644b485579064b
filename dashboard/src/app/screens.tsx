/** All screens. To add one: a folder in `screens/` whose default export is a component, and an entry here. */

import { type ComponentType, lazy, useState } from "react";
import {
  type Icon,
  IconAdjustments,
  IconBox,
  IconGauge,
  IconHeartbeat,
  IconKey,
  IconList,
  IconMessageCircle,
  IconReportMoney,
  IconServer,
  IconSettings,
  IconShieldCheck,
  IconStack2,
  IconUsers,
} from "@/components/icons";

export interface Screen {
  /** Path below `/dashboard/`. Paths below this one belong to the screen too. */
  path: string;
  title: string;
  icon: Icon;
  group: "Platform" | "Build" | "Observe" | "Administer";
  /** `platform`: platform roles only. `account`: shows one account. `any`: one account, or all for platform roles. */
  scope: "platform" | "account" | "any";
  /** Words by which the command palette finds the screen too. */
  keywords?: string[];
  /** Fetches the code of the screen. */
  load: () => Promise<{ default: ComponentType }>;
  component: ComponentType;
}

function lazily(load: Screen["load"]): Pick<Screen, "load" | "component"> {
  let loading: ReturnType<Screen["load"]> | undefined;
  let loaded: ComponentType | null = null;
  const loadOnce = () =>
    (loading ??= load().then((module) => {
      loaded = module.default;
      return module;
    }));
  const Lazy = lazy(loadOnce);
  // A lazy component shows an indicator before its first render, even if its code is there.
  function LoadedScreen() {
    const [Ready] = useState(() => loaded);
    return Ready ? <Ready /> : <Lazy />;
  }
  return { load: loadOnce, component: LoadedScreen };
}

export const SCREENS: Screen[] = [
  {
    path: "overview",
    title: "Overview",
    icon: IconGauge,
    group: "Platform",
    scope: "any",
    keywords: ["latency", "errors", "traffic", "home"],
    ...lazily(() => import("@/screens/overview/Overview")),
  },
  {
    path: "fleet",
    title: "Fleet",
    icon: IconServer,
    group: "Platform",
    scope: "platform",
    keywords: ["nodes", "pops", "map", "drain", "load", "placement"],
    ...lazily(() => import("@/screens/fleet/Fleet")),
  },
  {
    path: "models",
    title: "Models",
    icon: IconBox,
    group: "Build",
    scope: "any",
    keywords: ["catalog", "publish", "aliases", "prices"],
    ...lazily(() => import("@/screens/models/Models")),
  },
  {
    path: "playground",
    title: "Playground",
    icon: IconMessageCircle,
    group: "Build",
    scope: "account",
    keywords: ["chat", "embeddings", "completion", "markdown"],
    ...lazily(() => import("@/screens/playground/Playground")),
  },
  {
    path: "finetunes",
    title: "Finetunes",
    icon: IconAdjustments,
    group: "Build",
    scope: "account",
    keywords: ["lora", "adapters"],
    ...lazily(() => import("@/screens/finetunes/Finetunes")),
  },
  {
    path: "tokens",
    title: "API tokens",
    icon: IconKey,
    group: "Build",
    scope: "account",
    keywords: ["keys", "secrets", "permissions"],
    ...lazily(() => import("@/screens/tokens/ApiTokens")),
  },
  {
    path: "usage",
    title: "Usage and cost",
    icon: IconReportMoney,
    group: "Observe",
    scope: "any",
    keywords: ["budget", "alerts", "forecast", "csv", "spend"],
    ...lazily(() => import("@/screens/usage/Usage")),
  },
  {
    path: "logs",
    title: "Logs",
    icon: IconList,
    group: "Observe",
    scope: "any",
    keywords: ["calls", "requests", "tail"],
    ...lazily(() => import("@/screens/logs/Logs")),
  },
  {
    path: "jobs",
    title: "Batches and jobs",
    icon: IconStack2,
    group: "Observe",
    scope: "account",
    keywords: ["webhooks", "deliveries", "batch"],
    ...lazily(() => import("@/screens/jobs/Jobs")),
  },
  {
    path: "accounts",
    title: "Accounts",
    icon: IconUsers,
    group: "Administer",
    scope: "any",
    keywords: ["members", "invitations", "plans", "limits"],
    ...lazily(() => import("@/screens/accounts/Accounts")),
  },
  {
    path: "audit",
    title: "Audit",
    icon: IconShieldCheck,
    group: "Administer",
    scope: "any",
    keywords: ["who", "changes", "history"],
    ...lazily(() => import("@/screens/audit/Audit")),
  },
  {
    path: "settings",
    title: "Settings",
    icon: IconSettings,
    group: "Administer",
    scope: "platform",
    keywords: ["environment", "configuration"],
    ...lazily(() => import("@/screens/settings/Settings")),
  },
  {
    path: "health",
    title: "Health",
    icon: IconHeartbeat,
    group: "Administer",
    scope: "platform",
    keywords: ["database", "redis", "versions", "migration"],
    ...lazily(() => import("@/screens/health/Health")),
  },
];
