/** The output of a task other than chat. All text is shown as text. */

import { Anchor, Button, Group, Image, Progress, Stack, Table, Text } from "@mantine/core";
import { useMemo, useRef, useState } from "react";
import { CopyButton } from "@/components/CopyButton";
import { IconDownload } from "@/components/icons";
import { JsonView } from "@/components/JsonView";
import classes from "./playground.module.css";
import type { RunOutput } from "./run-model";
import { type Label, type Segment, shownOf } from "./run-output";
import { useFileUrl } from "./useFileUrl";

const MAX_LABELS = 20;
const COLORS = ["red", "blue", "green", "orange", "grape", "teal", "pink", "cyan"];

interface RunOutputViewProps {
  output: RunOutput;
  /** The file that was sent, for boxes in images and times in recordings. */
  file: File | null;
  /** The documents that were sent, for a ranking. */
  documents: string[];
}

export function RunOutputView({ output, file, documents }: RunOutputViewProps) {
  const shown = useMemo(() => shownOf(output), [output]);
  switch (shown.kind) {
    case "image":
    case "audio":
      return <MediaView kind={shown.kind} blob={shown.blob} />;
    case "labels":
      return <LabelTable labels={shown.labels} />;
    case "boxes":
      return <BoxesView labels={shown.labels} image={file} />;
    case "ranking":
      return <Ranking scores={shown.scores} documents={documents} />;
    case "transcript":
      return <Transcript text={shown.text} segments={shown.segments} vtt={shown.vtt} recording={file} />;
    case "text":
      return <TextView text={shown.text} />;
    case "other":
      return <JsonView value={JSON.stringify(shown.value, null, 2) ?? ""} label="Result" />;
  }
}

function TextView({ text }: { text: string }) {
  return (
    <Group justify="space-between" align="flex-start" wrap="nowrap">
      <div className={classes.text} dir="auto" data-testid="result-text">
        {text || "The result is empty."}
      </div>
      <CopyButton value={text} label="Copy result" />
    </Group>
  );
}

function MediaView({ kind, blob }: { kind: "image" | "audio"; blob: Blob }) {
  const url = useFileUrl(blob);
  if (!url) return null;
  const suffix = (blob.type.split("/")[1] ?? "bin").replace("mpeg", "mp3").replace("*", "bin");
  return (
    <Stack gap="sm" align="flex-start">
      {kind === "image" ? (
        <Image src={url} alt="Generated image" w="auto" maw="100%" fit="contain" />
      ) : (
        <audio controls src={url} aria-label="Generated speech" style={{ width: "100%" }} />
      )}
      <Button component="a" href={url} download={`result.${suffix}`} variant="default" leftSection={<IconDownload size={14} />}>
        Download
      </Button>
    </Stack>
  );
}

function LabelTable({ labels }: { labels: Label[] }) {
  const sorted = [...labels].sort((a, b) => b.score - a.score).slice(0, MAX_LABELS);
  if (sorted.length === 0) return <Text c="dimmed">Nothing was found.</Text>;
  return (
    <Table>
      <Table.Thead>
        <Table.Tr>
          <Table.Th>Label</Table.Th>
          <Table.Th>Score</Table.Th>
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {sorted.map(({ label, score }, index) => (
          <Table.Tr key={index}>
            <Table.Td>{label}</Table.Td>
            <Table.Td>
              <Score value={score} />
            </Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}

function Score({ value }: { value: number }) {
  const percent = Math.max(0, Math.min(1, value)) * 100;
  return (
    <Group gap="xs" wrap="nowrap">
      <Progress value={percent} flex={1} miw={60} aria-hidden="true" />
      <Text size="sm" className="mono">
        {value.toFixed(3)}
      </Text>
    </Group>
  );
}

/** The image with a box and a label for each object. */
function BoxesView({ labels, image }: { labels: Label[]; image: File | null }) {
  const url = useFileUrl(image);
  const [size, setSize] = useState<{ width: number; height: number } | null>(null);
  const unit = size ? Math.max(size.width, size.height) / 400 : 1; // line width and text size follow the image's size
  return (
    <Stack gap="sm">
      {url && (
        <div className={classes.boxes}>
          <img
            src={url}
            alt={`${labels.length} objects found`}
            onLoad={({ currentTarget: { naturalWidth: width, naturalHeight: height } }) => setSize({ width, height })}
          />
          {size && (
            <svg viewBox={`0 0 ${size.width} ${size.height}`} aria-hidden="true">
              {labels.map(({ label, box }, index) => {
                if (!box) return null;
                const color = `var(--mantine-color-${COLORS[index % COLORS.length]}-6)`;
                return (
                  <g key={index} data-testid="box">
                    <rect
                      x={box.xmin}
                      y={box.ymin}
                      width={box.xmax - box.xmin}
                      height={box.ymax - box.ymin}
                      fill="none"
                      stroke={color}
                      strokeWidth={2 * unit}
                    />
                    <text x={box.xmin + 3 * unit} y={box.ymin + 13 * unit} fontSize={12 * unit} fontWeight="bold" fill={color}>
                      {label}
                    </text>
                  </g>
                );
              })}
            </svg>
          )}
        </div>
      )}
      <LabelTable labels={labels} />
    </Stack>
  );
}

function Ranking({ scores, documents }: { scores: { id: number; score: number }[]; documents: string[] }) {
  return (
    <LabelTable labels={scores.map(({ id, score }) => ({ label: documents[id] ?? `Document ${id}`, score }))} />
  );
}

interface TranscriptProps {
  text: string;
  segments: Segment[];
  vtt: string;
  recording: File | null;
}

/** The text, and its segments with times that play the recording from there. */
function Transcript({ text, segments, vtt, recording }: TranscriptProps) {
  const player = useRef<HTMLAudioElement>(null);
  const url = useFileUrl(recording);
  const subtitles = useMemo(() => (vtt === "" ? null : new Blob([vtt], { type: "text/vtt" })), [vtt]);
  const subtitlesUrl = useFileUrl(subtitles);
  const playFrom = (seconds: number) => {
    if (!player.current) return;
    player.current.currentTime = seconds;
    void player.current.play();
  };
  return (
    <Stack gap="sm">
      <TextView text={text} />
      {url && <audio ref={player} controls src={url} aria-label="Recording with transcript" style={{ width: "100%" }} />}
      {segments.length > 0 && (
        <Table>
          <Table.Tbody>
            {segments.map((segment, index) => (
              <Table.Tr key={index}>
                <Table.Td w={90}>
                  <Anchor component="button" size="sm" className="mono" onClick={() => playFrom(segment.start)}>
                    {segment.start.toFixed(1)} s
                  </Anchor>
                </Table.Td>
                <Table.Td>{segment.text}</Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      )}
      {subtitlesUrl && (
        <Button
          component="a"
          href={subtitlesUrl}
          download="transcript.vtt"
          variant="default"
          w="fit-content"
          leftSection={<IconDownload size={14} />}
        >
          Download as WebVTT
        </Button>
      )}
    </Stack>
  );
}
