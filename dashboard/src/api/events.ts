/**
 * Live updates: one server-sent event stream per tab, shared by all screens, opened only while a screen listens.
 *
 * A browser allows six connections to a host, so two streams would be a waste. While the stream is down, `isLive` is
 * false and screens poll instead (`useLive`).
 */

import { useEffect, useRef, useSyncExternalStore } from "react";

export type Topic = "nodes" | "calls" | "jobs" | "publications";
type Listener = (data: unknown) => void;

const RETRY_MS = [1_000, 2_000, 5_000, 10_000, 30_000];
const TOPIC_CHANGE_MS = 50; // a screen that replaces another unsubscribes and subscribes in one go

class EventStream {
  private source: EventSource | null = null;
  private listeners = new Map<Topic, Set<Listener>>();
  private watchers = new Set<() => void>();
  private accountId: string | null = null;
  private openedFor = "";
  private timer: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;
  isLive = false;

  subscribe(topic: Topic, listener: Listener): () => void {
    const listeners = this.listeners.get(topic) ?? new Set();
    this.listeners.set(topic, listeners);
    listeners.add(listener);
    this.schedule(TOPIC_CHANGE_MS);
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0) this.listeners.delete(topic);
      this.schedule(TOPIC_CHANGE_MS);
    };
  }

  watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  /** Choose the account whose events are sent; `null` stands for all accounts. */
  setAccount(accountId: string | null): void {
    if (this.accountId === accountId) return;
    this.accountId = accountId;
    this.schedule(TOPIC_CHANGE_MS);
  }

  private schedule(delayMs: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.update(), delayMs);
  }

  private update(): void {
    const topics = [...this.listeners.keys()].sort();
    const query = new URLSearchParams({ topics: topics.join(",") });
    if (this.accountId) query.set("account_id", this.accountId);
    const url = topics.length === 0 ? "" : `/client/v4/events?${query}`;
    if (url === this.openedFor && this.source) return;
    this.source?.close();
    this.source = null;
    this.openedFor = url;
    this.setLive(false);
    if (url) this.open(url, topics);
  }

  private open(url: string, topics: Topic[]): void {
    const source = new EventSource(url);
    this.source = source;
    source.onopen = () => {
      this.failures = 0;
      this.setLive(true);
    };
    source.onerror = () => {
      this.setLive(false);
      // The browser reconnects by itself unless the gateway refused the request.
      if (source.readyState !== EventSource.CLOSED || this.source !== source) return;
      this.source = null;
      this.schedule(RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)] ?? 30_000);
    };
    for (const topic of topics) {
      source.addEventListener(topic, (event) => this.dispatch(topic, (event as MessageEvent<string>).data));
    }
  }

  private dispatch(topic: Topic, text: string): void {
    const data: unknown = JSON.parse(text);
    for (const listener of this.listeners.get(topic) ?? []) listener(data);
  }

  private setLive(isLive: boolean): void {
    if (this.isLive === isLive) return;
    this.isLive = isLive;
    for (const watcher of this.watchers) watcher();
  }
}

export const eventStream = new EventStream();

/**
 * Call `listener` with the data of each event of a topic. Returns the interval at which the screen should poll instead:
 * `false` while events arrive, `pollMs` otherwise. Pass it to `refetchInterval`.
 */
export function useLive(topic: Topic, listener: Listener, pollMs = 5_000): number | false {
  const latest = useRef(listener);
  useEffect(() => {
    latest.current = listener;
  });
  useEffect(() => eventStream.subscribe(topic, (data) => latest.current(data)), [topic]);
  const isLive = useIsLive();
  return isLive ? false : pollMs;
}

/** Return True while the event stream is connected. */
export function useIsLive(): boolean {
  return useSyncExternalStore(eventStream.watch, () => eventStream.isLive);
}
