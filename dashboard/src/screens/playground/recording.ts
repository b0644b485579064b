/** Recordings from the microphone as WAV files, which every speech model accepts. */

import { useCallback, useEffect, useRef, useState } from "react";

const SAMPLE_RATE = 16_000; // the rate of speech models
const HEADER_BYTES = 44;

export interface Recorder {
  isRecording: boolean;
  error: string | null;
  start: () => void;
  stop: () => void;
}

/** Return a recorder. `onRecorded` receives each finished recording. */
export function useRecorder(onRecorded: (file: File) => void): Recorder {
  const [isRecording, setIsRecording] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const recorder = useRef<MediaRecorder | null>(null);
  const latest = useRef(onRecorded);
  useEffect(() => {
    latest.current = onRecorded;
  });
  useEffect(() => () => release(recorder.current), []);

  const start = useCallback(async () => {
    setError(null);
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      const made = new MediaRecorder(stream);
      const parts: Blob[] = [];
      made.ondataavailable = (event) => parts.push(event.data);
      made.onstop = () => {
        release(made);
        setIsRecording(false);
        toWav(new Blob(parts, { type: made.mimeType })).then(
          (file) => latest.current(file),
          () => setError("The browser could not read its own recording."),
        );
      };
      recorder.current = made;
      made.start();
      setIsRecording(true);
    } catch {
      setError("The browser has no access to a microphone. Allow it in the site's settings, or choose a file.");
    }
  }, []);
  const stop = useCallback(() => recorder.current?.state === "recording" && recorder.current.stop(), []);
  return { isRecording, error, start: () => void start(), stop };
}

function release(recorder: MediaRecorder | null): void {
  recorder?.stream.getTracks().forEach((track) => track.stop());
}

/** Return an audio file that the browser can decode as 16-bit mono WAV with 16,000 samples per second. */
async function toWav(recorded: Blob): Promise<File> {
  const bytes = await recorded.arrayBuffer();
  const context = new AudioContext();
  const decoded = await context.decodeAudioData(bytes).finally(() => context.close());
  const offline = new OfflineAudioContext(1, Math.max(1, Math.ceil(decoded.duration * SAMPLE_RATE)), SAMPLE_RATE);
  const source = offline.createBufferSource();
  source.buffer = decoded;
  source.connect(offline.destination);
  source.start();
  const samples = (await offline.startRendering()).getChannelData(0);
  return new File([encodeWav(samples, SAMPLE_RATE)], "recording.wav", { type: "audio/wav" });
}

/** Return samples between -1 and 1 as a 16-bit mono WAV file. */
export function encodeWav(samples: Float32Array, sampleRate: number): ArrayBuffer {
  const buffer = new ArrayBuffer(HEADER_BYTES + 2 * samples.length);
  const view = new DataView(buffer);
  const writeText = (offset: number, text: string) =>
    [...text].forEach((letter, index) => view.setUint8(offset + index, letter.charCodeAt(0)));
  writeText(0, "RIFF");
  view.setUint32(4, HEADER_BYTES - 8 + 2 * samples.length, true);
  writeText(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // bytes of the format block
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, 2 * sampleRate, true);
  view.setUint16(32, 2, true); // bytes per sample
  view.setUint16(34, 16, true); // bits per sample
  writeText(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, index) => {
    view.setInt16(HEADER_BYTES + 2 * index, Math.round(Math.max(-1, Math.min(1, sample)) * 32_767), true);
  });
  return buffer;
}
