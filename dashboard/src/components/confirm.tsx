/** Ask before something is changed that cannot be undone. The question names the object. */

import { Text } from "@mantine/core";
import { modals } from "@mantine/modals";
import { notifications } from "@mantine/notifications";
import type { ReactNode } from "react";
import { ErrorState } from "./ErrorState";
import { Name } from "./values";

interface Question {
  /** Verb and kind of object: "Revoke API token". */
  title: string;
  /** Name of the object that will be changed. */
  object: string;
  /** What happens then. */
  consequence: ReactNode;
  /** Text of the button, a verb. */
  confirm: string;
  action: () => Promise<unknown>;
  /** Shown when the action has succeeded. */
  done?: string;
  isDestructive?: boolean;
}

export function confirmAction(question: Question): void {
  const isDestructive = question.isDestructive ?? true;
  modals.openConfirmModal({
    title: question.title,
    children: (
      <>
        <Text size="sm" fw={600} mb={4} component="div">
          <Name value={question.object} maxWidth="100%" />
        </Text>
        <Text size="sm" component="div">
          {question.consequence}
        </Text>
      </>
    ),
    labels: { confirm: question.confirm, cancel: "Cancel" },
    confirmProps: { color: isDestructive ? "red" : undefined },
    onConfirm: () => void runAction(question.action, question.done ?? ""),
  });
}

/** Run an action and report how it ended. Returns True if the action succeeded. */
export async function runAction(action: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await action();
  } catch (error) {
    showError(error);
    return false;
  }
  if (done) notifications.show({ message: done, color: "teal" });
  return true;
}

/** Show an error in a dialog that stays until it is closed, since its request id may be needed. */
export function showError(error: unknown, title = "That did not work"): void {
  modals.open({ title, children: <ErrorState error={error} /> });
}
