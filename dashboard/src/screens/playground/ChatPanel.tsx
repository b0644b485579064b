/** Chat with one model, or with two side by side. */

import { ActionIcon, Button, Drawer, FileButton, Group, Text, Textarea, Tooltip } from "@mantine/core";
import { useDisclosure, useMediaQuery } from "@mantine/hooks";
import { useMemo, useState } from "react";
import { useSearchParams } from "react-router";
import { IconAdjustments, IconColumns, IconPhoto, IconPlayerStop, IconSend, IconX } from "@/components/icons";
import { useModelSchema } from "@/screens/models/catalog";
import { type CatalogModel, hasCapability } from "@/screens/models/catalog-filters";
import { type ChatOptions, ChatSettings, HIDDEN_PARAMETERS, NEW_CHAT, optionFields } from "./ChatSettings";
import { ChatTurns } from "./ChatTurns";
import { CodeButton } from "./CodeButton";
import { messagesOf, needsToolResults } from "./conversation";
import { ModelSelect } from "./ModelSelect";
import { useChosenModel } from "./models";
import type { PanelProps } from "./panels";
import classes from "./playground.module.css";
import { bodyOf, parametersOf, variantWith } from "./schema-parameters";
import { useConversation } from "./useConversation";

export default function ChatPanel({ accountId, models }: PanelProps) {
  const [model, chooseModel] = useChosenModel("model", models);
  const [second, chooseSecond] = useChosenModel("compare", models, false);
  const [query] = useSearchParams();
  const [options, setOptions] = useState<ChatOptions>(() => ({ ...NEW_CHAT, lora: query.get("lora") ?? "" }));
  const [isOpen, { open, close }] = useDisclosure(false);
  const isWide = useMediaQuery("(min-width: 62em)", true, { getInitialValueInEffect: false });
  const [first, other] = [useChat(accountId, model, options), useChat(accountId, second, options)];
  if (!model) return null;
  const chats = second ? [first, other] : [first];
  const conversations = chats.map((chat) => chat.conversation);
  const settings = (
    <ChatSettings
      accountId={accountId}
      model={model}
      parameters={first.parameters}
      properties={first.properties}
      options={options}
      onChange={(changes) => setOptions((before) => ({ ...before, ...changes }))}
    />
  );
  const messages = messagesOf(first.conversation.turns, options.systemPrompt);
  const sampleMessages = messages.length > 0 ? messages : [{ role: "user", content: "Hello!" }];
  const suggested = models.find((each) => each.name !== model.name);
  return (
    <>
      <Group gap="xs" mb="sm">
        <ModelSelect label="Model" models={models} value={model.name} onChange={chooseModel} />
        {second ? (
          <>
            <ModelSelect label="Second model" models={models} value={second.name} onChange={chooseSecond} />
            <Tooltip label="Close the second model">
              <ActionIcon aria-label="Close the second model" onClick={() => chooseSecond(null)}>
                <IconX />
              </ActionIcon>
            </Tooltip>
          </>
        ) : (
          <Button
            variant="default"
            leftSection={<IconColumns size={14} />}
            onClick={() => chooseSecond((suggested ?? model).name)}
          >
            Compare
          </Button>
        )}
        <CodeButton
          call={{
            accountId,
            model: model.name,
            route: "chat/completions",
            body: { messages: sampleMessages, ...first.body, stream: true },
          }}
        />
        {!isWide && (
          <Button variant="default" leftSection={<IconAdjustments size={14} />} onClick={open}>
            Settings
          </Button>
        )}
      </Group>
      <div className={classes.chat}>
        <div className={classes.conversations}>
          <div className={classes.columns}>
            {chats.map((chat, index) => (
              <div key={index} className={classes.column}>
                {second && (
                  <Text size="xs" fw={600} className={`${classes.columnHeader} ellipsis`}>
                    {chat.name}
                  </Text>
                )}
                <ChatTurns conversation={chat.conversation} model={chat.name} />
              </div>
            ))}
          </div>
          <Composer
            isRunning={conversations.some((each) => each.isRunning)}
            isBlocked={conversations.some((each) => needsToolResults(each.turns))}
            isEmpty={conversations.every((each) => each.turns.length === 0)}
            canAttach={hasCapability(model, "vision") && (!second || hasCapability(second, "vision"))}
            onSend={(text, images) => conversations.forEach((each) => each.sendText(text, images))}
            onStop={() => conversations.forEach((each) => each.stop())}
            onClear={() => conversations.forEach((each) => each.clear())}
          />
        </div>
        {isWide && (
          <aside className={classes.settings} aria-label="Settings">
            {settings}
          </aside>
        )}
      </div>
      <Drawer opened={isOpen && !isWide} onClose={close} title="Settings" position="right" size="sm">
        {settings}
      </Drawer>
    </>
  );
}

/** Return the conversation with a model and the parameters of its schema. */
function useChat(accountId: string, model: CatalogModel | null, options: ChatOptions) {
  const name = model?.name ?? "";
  const schema = useModelSchema(name || null);
  const [parameters, properties] = useMemo(() => {
    const variant = schema.data && variantWith(schema.data.input, "messages");
    if (!variant) return [[], new Set<string>()] as const;
    return [parametersOf(variant, HIDDEN_PARAMETERS), new Set(Object.keys(variant.properties ?? {}))] as const;
  }, [schema.data]);
  const offered = Object.fromEntries(
    Object.entries(optionFields(options)).filter(([field]) => field === "chat_template_kwargs" || properties.has(field)),
  );
  const body = { ...offered, ...bodyOf([...parameters], options.values) };
  const conversation = useConversation({ accountId, model: name, systemPrompt: options.systemPrompt, body });
  return { name, conversation, parameters: [...parameters], properties, body };
}

interface ComposerProps {
  isRunning: boolean;
  isBlocked: boolean;
  isEmpty: boolean;
  /** The models accept images. */
  canAttach: boolean;
  onSend: (text: string, images: string[]) => void;
  onStop: () => void;
  onClear: () => void;
}

function Composer({ isRunning, isBlocked, isEmpty, canAttach, onSend, onStop, onClear }: ComposerProps) {
  const [text, setText] = useState("");
  const [images, setImages] = useState<string[]>([]);
  const attached = canAttach ? images : [];
  const canSend = (text.trim() !== "" || attached.length > 0) && !isRunning && !isBlocked;
  const send = () => {
    if (!canSend) return;
    onSend(text, attached);
    setText("");
    setImages([]);
  };
  return (
    <form
      className={classes.composer}
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <Textarea
        aria-label="Message"
        placeholder={isBlocked ? "Send the results of the tools first" : "Message (Enter sends, Shift+Enter starts a new line)"}
        autosize
        minRows={2}
        maxRows={8}
        value={text}
        onChange={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
          event.preventDefault();
          send();
        }}
      />
      {attached.length > 0 && (
        <Group gap="xs" mt="xs">
          {attached.map((url, index) => (
            <img key={index} src={url} alt={`Image ${index + 1} to send`} className={classes.attached} />
          ))}
          <Button variant="subtle" color="gray" onClick={() => setImages([])}>
            Remove images
          </Button>
        </Group>
      )}
      <Group justify="space-between" mt="xs">
        <Group gap="xs">
          <Button variant="subtle" color="gray" disabled={isEmpty} onClick={onClear}>
            New conversation
          </Button>
          {canAttach && (
            <FileButton
              multiple
              accept="image/png,image/jpeg,image/webp,image/gif"
              onChange={(files) => void Promise.all(files.map(toDataUrl)).then((urls) => setImages([...images, ...urls]))}
            >
              {(props) => (
                <Button {...props} variant="subtle" color="gray" leftSection={<IconPhoto size={14} />}>
                  Attach images
                </Button>
              )}
            </FileButton>
          )}
        </Group>
        {isRunning ? (
          <Button color="red" variant="light" leftSection={<IconPlayerStop size={14} />} onClick={onStop}>
            Stop
          </Button>
        ) : (
          <Button type="submit" disabled={!canSend} leftSection={<IconSend size={14} />}>
            Send
          </Button>
        )}
      </Group>
    </form>
  );
}

function toDataUrl(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(reader.error ?? new Error("The file could not be read."));
    reader.readAsDataURL(file);
  });
}
