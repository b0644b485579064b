/**
 * Table of rows with sortable columns, and with states for loading, errors and no rows.
 *
 * Long tables render only the visible rows. The sort order is kept in the query string (`sort=name`, `sort=-name`).
 */

import { Box, Skeleton, Table, UnstyledButton } from "@mantine/core";
import {
  type ColumnDef,
  createSortedRowModel,
  rowSortingFeature,
  type SortingState,
  tableFeatures,
  useTable,
} from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, type ReactNode, useMemo, useRef } from "react";
import { useSearchParams } from "react-router";
import { replaceInQuery } from "@/lib/query-state";
import classes from "./DataTable.module.css";
import { ErrorState } from "./ErrorState";
import { IconChevronDown, IconChevronUp, IconSelector } from "./icons";

export interface Column<T> {
  id: string;
  header: string;
  cell: (row: T) => ReactNode;
  /** Value to sort by; columns without it cannot be sorted. Null values come last. */
  sortBy?: (row: T) => string | number | null | undefined;
  align?: "right";
  /** Width in pixels. */
  width?: number;
  /** Hide the column on narrow screens. */
  isWideOnly?: boolean;
}

interface Props<T> {
  /** Accessible name of the table. */
  label: string;
  columns: Column<T>[];
  rows: T[] | undefined;
  rowId: (row: T) => string;
  error?: unknown;
  onRetry?: () => void;
  /** Shown when there are no rows. */
  empty: ReactNode;
  /** Makes rows clickable. Put a link or button into a cell too, for the keyboard. */
  onRowClick?: (row: T) => void;
  /** Name of the query parameter with the sort order, for pages with several tables. */
  sortParameter?: string;
  /** Sort order if the query string has none, such as "-created". */
  defaultSort?: string;
  maxHeight?: number | string;
}

type Row<T> = { original: T };

const features = tableFeatures({ rowSortingFeature, sortedRowModel: createSortedRowModel() });
const ROW_HEIGHT = 34;
const VIRTUAL_FROM = 100; // shorter tables are rendered whole, so that the browser can search in them
const NO_ROWS: never[] = [];

export function DataTable<T>(props: Props<T>) {
  const { rows, error, onRetry, empty, columns } = props;
  if (error && rows === undefined) return <ErrorState error={error} onRetry={onRetry} />;
  if (rows === undefined) return <LoadingRows numColumns={columns.length} label={props.label} />;
  if (rows.length === 0) return <>{empty}</>;
  return (
    <>
      {Boolean(error) && <ErrorState error={error} title="The list could not be refreshed" onRetry={onRetry} />}
      <Rows {...props} />
    </>
  );
}

// `localeCompare` with options makes a collator for every comparison.
const COLLATOR = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

function compare(left: unknown, right: unknown): number {
  if (typeof left === "number" && typeof right === "number") return left - right;
  return COLLATOR.compare(String(left), String(right));
}

function toDefinition<T>(column: Column<T>): ColumnDef<typeof features, Row<T>, unknown> {
  const { sortBy } = column;
  return {
    id: column.id,
    accessorFn: (row: Row<T>) => sortBy?.(row.original) ?? undefined,
    enableSorting: sortBy !== undefined,
    sortUndefined: "last",
    sortFn: (left, right, id) => compare(left.getValue(id), right.getValue(id)),
  } as ColumnDef<typeof features, Row<T>, unknown>;
}

function useSorting(name: string, defaultSort: string): [SortingState, (id: string) => void] {
  const [query, setQuery] = useSearchParams();
  const text = query.get(name) ?? defaultSort;
  const sorting = useMemo(
    () => (text ? [{ id: text.replace(/^-/, ""), desc: text.startsWith("-") }] : []),
    [text],
  );
  const toggle = (id: string) => {
    const next = text === id ? `-${id}` : id;
    setQuery((before) => replaceInQuery(before, { [name]: next }, { [name]: defaultSort }), { replace: true });
  };
  return [sorting, toggle];
}

function Rows<T>({
  label,
  columns,
  rows,
  rowId,
  onRowClick,
  sortParameter = "sort",
  defaultSort = "",
  maxHeight = "70vh",
}: Props<T>) {
  const [sorting, toggleSort] = useSorting(sortParameter, defaultSort);
  const data = useMemo(() => (rows ?? NO_ROWS).map((original): Row<T> => ({ original })), [rows]);
  const definitions = useMemo(() => columns.map(toDefinition), [columns]);
  const table = useTable({
    features,
    columns: definitions,
    data,
    state: { sorting },
    onSortingChange: () => undefined,
    getRowId: (row: Row<T>) => rowId(row.original),
  });
  const sorted = table.getRowModel().rows;
  const isVirtual = sorted.length > VIRTUAL_FROM;
  const scroller = useRef<HTMLDivElement>(null);
  const virtualizer = useVirtualizer({
    count: sorted.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 12,
    enabled: isVirtual,
  });
  const items = virtualizer.getVirtualItems();
  const shown = isVirtual ? items.map((item) => sorted[item.index]) : sorted;
  const before = isVirtual ? (items[0]?.start ?? 0) : 0;
  const after = isVirtual ? virtualizer.getTotalSize() - (items.at(-1)?.end ?? 0) : 0;

  return (
    <Box
      ref={scroller}
      className={`${classes.scroller} scrolls-sideways`}
      mah={maxHeight}
      tabIndex={0}
      role="region"
      aria-label={`${label}, scrollable`}
    >
      <Table
        aria-label={label}
        aria-rowcount={sorted.length + 1}
        stickyHeader
        className={classes.table}
        layout={isVirtual ? "fixed" : "auto"}
      >
        <Table.Thead>
          <Table.Tr>
            {columns.map((column) => (
              <HeaderCell key={column.id} column={column} sorting={sorting} onSort={toggleSort} />
            ))}
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {before > 0 && <Spacer height={before} numColumns={columns.length} />}
          {shown.map((row) =>
            row === undefined ? null : (
              <BodyRow
                key={row.id}
                row={row.original.original}
                columns={columns}
                isFixed={isVirtual}
                onRowClick={onRowClick}
              />
            ),
          )}
          {after > 0 && <Spacer height={after} numColumns={columns.length} />}
        </Table.Tbody>
      </Table>
    </Box>
  );
}

interface BodyRowProps<T> {
  row: T;
  columns: Column<T>[];
  isFixed: boolean;
  onRowClick?: (row: T) => void;
}

// Scrolling renders the table for every few rows; only rows that come into view are rendered anew.
const BodyRow = memo(function BodyRow<T>({ row, columns, isFixed, onRowClick }: BodyRowProps<T>) {
  return (
    <tr className={isFixed ? classes.fixed : undefined} data-clickable={onRowClick ? true : undefined} onClick={onRowClick && (() => onRowClick(row))}>
      {columns.map((column) => (
        <td key={column.id} className={cellClass(column)}>
          {column.cell(row)}
        </td>
      ))}
    </tr>
  );
}) as <T>(props: BodyRowProps<T>) => ReactNode;

function cellClass<T>(column: Column<T>): string {
  return `${column.align === "right" ? classes.right : ""} ${column.isWideOnly ? classes.wideOnly : ""}`;
}

interface HeaderProps<T> {
  column: Column<T>;
  sorting: SortingState;
  onSort: (id: string) => void;
}

function HeaderCell<T>({ column, sorting, onSort }: HeaderProps<T>) {
  const order = sorting.find((item) => item.id === column.id);
  const direction = order ? (order.desc ? "descending" : "ascending") : "none";
  const SortIcon = order ? (order.desc ? IconChevronDown : IconChevronUp) : IconSelector;
  const isSortable = column.sortBy !== undefined;
  return (
    <Table.Th
      scope="col"
      w={column.width}
      className={cellClass(column)}
      aria-sort={isSortable ? direction : undefined}
    >
      {isSortable ? (
        <UnstyledButton className={classes.sort} onClick={() => onSort(column.id)}>
          {column.header}
          <SortIcon size={12} opacity={order ? 1 : 0.45} />
        </UnstyledButton>
      ) : (
        column.header
      )}
    </Table.Th>
  );
}

function Spacer({ height, numColumns }: { height: number; numColumns: number }) {
  return (
    <tr aria-hidden="true">
      <td colSpan={numColumns} style={{ height, padding: 0, border: 0 }} />
    </tr>
  );
}

function LoadingRows({ numColumns, label }: { numColumns: number; label: string }) {
  return (
    <Box role="status" aria-label={`${label}: loading`} py="xs">
      {Array.from({ length: 6 }, (_, row) => (
        <Box key={row} className={classes.loading}>
          {Array.from({ length: Math.min(numColumns, 6) }, (_, column) => (
            <Skeleton key={column} h={12} w={column === 0 ? "70%" : "45%"} />
          ))}
        </Box>
      ))}
    </Box>
  );
}
