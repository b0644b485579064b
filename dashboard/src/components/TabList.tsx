/** Tabs that scroll sideways on narrow screens, with the tab of the address in view. */

import { Tabs, type TabsListProps } from "@mantine/core";
import { useEffect, useRef } from "react";

export function TabList(props: TabsListProps) {
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const selected = list.current?.querySelector("[aria-selected=true]");
    selected?.scrollIntoView({ inline: "center", block: "nearest" });
  }, []);
  return <Tabs.List ref={list} {...props} />;
}
