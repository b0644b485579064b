/** Cosine similarity of embeddings. Pure. */

/** Return the cosine similarity of every pair of vectors. A vector of zeros has similarity 0 to every vector. */
export function similarityMatrix(vectors: number[][]): number[][] {
  const lengths = vectors.map((vector) => Math.sqrt(dot(vector, vector)));
  return vectors.map((a, i) =>
    vectors.map((b, j) => {
      const length = (lengths[i] ?? 0) * (lengths[j] ?? 0);
      return length === 0 ? 0 : dot(a, b) / length;
    }),
  );
}

function dot(a: number[], b: number[]): number {
  return a.reduce((sum, value, index) => sum + value * (b[index] ?? 0), 0);
}
