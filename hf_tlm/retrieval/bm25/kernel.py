"""The compiled kernels of `search.py`: bounds, sums, thresholds and exact scores of one tile."""

from __future__ import annotations

import numpy as np
from numba import njit

from hf_tlm.retrieval.bm25.tiles import MANY

NO_THRESHOLD = -np.inf


@njit(nogil=True, cache=True)
def places_of(tile_terms, terms):
    """Return the position of each of some ascending terms in the tile's terms, or -1: int32."""
    places = np.full(len(terms), -1, np.int32)
    at = 0
    for i in range(len(terms)):
        while at < len(tile_terms) and tile_terms[at] < terms[i]:
            at += 1
        if at < len(tile_terms) and tile_terms[at] == terms[i]:
            places[i] = at
    return places


@njit(nogil=True, cache=True)
def _occurrences(posting, counts, many):
    """Return the true number of occurrences of a posting whose counts entry is MANY, by binary search in `many`."""
    low, high = 0, len(many)
    while low < high:
        middle = (low + high) // 2
        if many[middle, 0] < posting:
            low = middle + 1
        else:
            high = middle
    return many[low, 1]


@njit(nogil=True, cache=True)
def _posting_of(doc, start, end, docs):
    """Return the posting of a passage among the postings start : end of a term, by binary search."""
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        if docs[middle] < doc:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def bounds_of(starts, docs, counts, many, norms, places, rows, weights, step, bounds, row_bounds, row_counts):
    """Compute an upper bound, in steps, of what each posting of the batch's terms adds to a score.

    Each bound is at least 1 and above the true value. Dense terms (rows[i] > 0) are written to `row_bounds` and
    `row_counts`, others to `bounds`.
    """
    for i in range(len(places)):
        place = places[i]
        if place < 0:
            continue
        weight = max(weights[i], 0.0) / step
        row = rows[i]
        for posting in range(starts[place], starts[place + 1]):
            count = np.int64(counts[posting])
            if count == MANY:
                count = _occurrences(posting, counts, many)
            doc = docs[posting]
            bound = np.int64(weight * count / (count + norms[doc])) + 1
            if row > 0:
                row_bounds[row, doc] = bound
                row_counts[row, doc] = counts[posting]
            else:
                bounds[posting] = bound


@njit(nogil=True, cache=True)
def _add_rows(sums, rows, row, factor):
    """Add the weighted sum of four rows to `sums`."""
    first, second, third, fourth = rows[row[0]], rows[row[1]], rows[row[2]], rows[row[3]]
    a, b, c, d = factor[0], factor[1], factor[2], factor[3]
    for i in range(len(sums)):
        sums[i] += first[i] * a + second[i] * b + third[i] * c + fourth[i] * d


@njit(nogil=True, cache=True)
def _passing(sums, num_docs, threshold, flags, words, found):
    """Write the passages whose sum is at least `threshold` into `found`, and return their number.

    Args:
        threshold: of the same dtype as the sums.
        flags: uint8, scratch memory as long as the sums.
        words: the same memory as uint64, to skip eight passages at once.
    """
    for i in range(len(sums)):
        flags[i] = sums[i] >= threshold
    flags[num_docs:] = 0
    number = 0
    for i in range(len(words)):
        word = words[i]
        if word:
            for j in range(8):
                found[number] = 8 * i + j
                number += np.int64(word & np.uint64(1))
                word >>= np.uint64(8)
    return number


@njit(nogil=True, cache=True)
def _add_exact(exact, found, number, row, weight, norms, counts):
    """Add a dense term's contribution to the exact scores of the passages found; return whether a count was MANY."""
    some = False
    for i in range(number):  # Gather the counts first, so that the next loop is vectorised.
        count = row[found[i]]
        some |= count == MANY
        counts[i] = count
    for i in range(number):
        exact[i] += np.int64(weight * counts[i] / (counts[i] + norms[i]))
    return some


@njit(nogil=True, cache=True)
def _prune(sums, found, number, top_k, slack, threshold, histogram):
    """Keep only the passages in `found` that can be among the tile's top_k, and return their number.

    A true score is less than `slack` steps below its sum, so a passage can be dropped if its sum is more than `slack` below
    the top_k-th highest one, which a histogram bounds from below.
    """
    largest = np.int64(0)
    for i in range(number):
        largest = max(largest, np.int64(sums[found[i]]))
    shift = 0
    while (largest - threshold) >> shift >= len(histogram):
        shift += 1
    histogram[:] = 0
    for i in range(number):
        histogram[(np.int64(sums[found[i]]) - threshold) >> shift] += 1
    above = 0
    bucket = len(histogram)
    while above < top_k:
        bucket -= 1
        above += histogram[bucket]
    limit = threshold + (bucket << shift) - slack
    kept = 0
    for i in range(number):
        doc = found[i]
        found[kept] = doc
        kept += sums[doc] >= limit
    return kept


@njit(nogil=True, cache=True)
def _select(keys, number, top_k):
    """Reorder keys[:number] so that the top_k largest come first (Hoare's quickselect)."""
    low, high, target = 0, number - 1, top_k - 1
    while low < high:
        middle = (low + high) // 2
        a, b, c = keys[low], keys[middle], keys[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while keys[i] > pivot:
                i += 1
            while keys[j] < pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if target <= j:
            high = j
        elif target >= i:
            low = i
        else:
            break


@njit(nogil=True, cache=True)
def _score(key):
    """Return the float32 score stored in the upper 32 bits of a key."""
    bits = np.int32(key >> 32)
    return np.int32(bits if bits >= 0 else bits ^ 0x7FFFFFFF).view(np.float32)


@njit(nogil=True, cache=True)
def last_scores(keys, filled, top_k):
    """Return the score of each query's top_k-th hit, float64 [Q]; NO_THRESHOLD for a query with fewer hits."""
    scores = np.full(len(filled), NO_THRESHOLD)
    for query in range(len(filled)):
        if filled[query] >= top_k:
            _select(keys[query], filled[query], top_k)
            scores[query] = _score(keys[query, top_k - 1])
    return scores


@njit(nogil=True, cache=True)
def decode(keys, by_place, documents, scores):
    """Convert keys in ascending order to documents and scores in descending order, until these arrays are full."""
    for i in range(len(documents)):
        key = keys[len(keys) - 1 - i]
        documents[i] = by_place[0xFFFFFFFF - (key & 0xFFFFFFFF)]
        scores[i] = _score(key)


@njit(nogil=True, cache=True)
def _first_threshold(sums, top_k, slack, largest):
    """Return a threshold that the top_k best passages of this tile reach.

    It is the top_k-th highest of the maxima of disjoint groups of passages, less `slack`: as many passages reach it.
    """
    depth = 64
    while depth > 1 and len(sums) // depth < 4 * top_k:
        depth //= 2
    if depth == 1:
        return np.int64(1)
    groups = sums.reshape(depth, -1)
    width = groups.shape[1]
    largest[:width] = groups[0]
    for i in range(1, depth):
        for j in range(width):
            largest[j] = max(largest[j], groups[i, j])
    _select(largest, width, top_k)
    return max(np.int64(1), np.int64(largest[top_k - 1]) - slack)


@njit(nogil=True, cache=True)
def search_tile(
    starts, docs, counts, many, norms, order,
    places, rows, weights, step, bounds, row_bounds, row_counts,
    queries, query_starts, query_slots, query_counts, slacks, scales, constants,
    top_k, keys, filled, thresholds, sums,
):  # fmt: skip
    """Score one tile for some queries, and add the candidates of their top_k to keys [Q, capacity].

    A key is the float32 score in its upper 32 bits, and the inverted position by id in its lower 32 bits: larger keys rank
    higher.
    """
    num_docs = len(norms)
    capacity = keys.shape[1]
    limit = 2 ** (8 * sums.itemsize) - 1
    largest = np.empty(len(sums) // 2, sums.dtype)
    found = np.empty(len(sums) + 1, np.uint16)
    found_norms, found_counts = np.empty(len(sums)), np.empty(len(sums))
    exact, histogram = np.empty(len(sums), np.int64), np.empty(1024, np.int64)
    flags = np.empty(len(sums), np.uint8)
    words = flags.view(np.uint64)
    dense = np.empty(query_slots.size + 4, np.int32)
    dense_rows = np.zeros(query_slots.size + 4, np.int32)
    factors = np.zeros(query_slots.size + 4, sums.dtype)
    sparse = np.empty(query_slots.size, np.int32)
    for query in queries:
        num_dense = num_sparse = 0
        sums[:] = 0
        for entry in range(query_starts[query], query_starts[query + 1]):
            slot = query_slots[entry]
            if slot < 0 or places[slot] < 0:
                continue
            if rows[slot] > 0:
                dense[num_dense] = entry
                dense_rows[num_dense] = rows[slot]
                factors[num_dense] = query_counts[entry]
                num_dense += 1
            else:
                sparse[num_sparse] = entry
                num_sparse += 1
                count = query_counts[entry]
                for posting in range(starts[places[slot]], starts[places[slot] + 1]):
                    sums[docs[posting]] += bounds[posting] * count
        if num_dense + num_sparse == 0:
            continue
        for i in range(num_dense, num_dense + 4):  # Pad to groups of four with row 0, which holds zeros.
            dense_rows[i] = 0
            factors[i] = 0
        for i in range(0, num_dense, 4):
            _add_rows(sums, row_bounds, dense_rows[i : i + 4], factors[i : i + 4])

        threshold = np.int64(1)
        if thresholds[query] > NO_THRESHOLD:
            # Scores that are equal after rounding to float32 are ties, so lower the threshold by a rounding error.
            least = thresholds[query] - abs(thresholds[query]) * 2.4e-7 - constants[query]
            threshold = max(threshold, np.int64(least / step - 1e-6))
        else:
            threshold = _first_threshold(sums, top_k, slacks[query], largest)
        number = _passing(sums, num_docs, sums.dtype.type(min(threshold, limit)), flags, words, found)
        if number > 2 * top_k + 64:
            number = _prune(sums, found, number, top_k, slacks[query], threshold, histogram)
        if number == 0:
            continue

        exact[:number] = 0
        scale = scales[query]
        if num_sparse:
            sums[:] = 0
            for i in range(number):
                sums[found[i]] = i + 1
            for i in range(num_sparse):
                entry = sparse[i]
                slot = query_slots[entry]
                weight = weights[slot] * query_counts[entry] * scale
                for posting in range(starts[places[slot]], starts[places[slot] + 1]):
                    at = sums[docs[posting]]
                    if at:
                        count = np.int64(counts[posting])
                        if count == MANY:
                            count = _occurrences(posting, counts, many)
                        exact[at - 1] += np.int64(weight * count / (count + norms[docs[posting]]))
        for i in range(number):
            found_norms[i] = norms[found[i]]
        for i in range(num_dense):
            entry = dense[i]
            slot = query_slots[entry]
            weight = weights[slot] * query_counts[entry] * scale
            row = row_counts[rows[slot]]
            if _add_exact(exact, found, number, row, weight, found_norms, found_counts):
                first, last = starts[places[slot]], starts[places[slot] + 1]
                for j in range(number):
                    if row[found[j]] == MANY:
                        norm = found_norms[j]
                        count = _occurrences(_posting_of(found[j], first, last, docs), counts, many)
                        exact[j] -= np.int64(weight * np.uint8(MANY) / (np.uint8(MANY) + norm))
                        exact[j] += np.int64(weight * count / (count + norm))

        # Local variables, because the compiler would read array elements again after every store to another array.
        own, filled_now, least, constant = keys[query], filled[query], thresholds[query], constants[query]
        for i in range(number):
            score = np.float32(exact[i] / scale + constant)
            if score < least:
                continue
            if filled_now == capacity:
                _select(own, capacity, top_k)
                filled_now = top_k
                least = np.float64(_score(own[top_k - 1]))
                if score < least:
                    continue
            bits = np.float32(score + np.float32(0)).view(np.int32)  # -0 becomes 0
            ordered = np.int64(bits) if bits >= 0 else np.int64(bits) ^ 0x7FFFFFFF
            own[filled_now] = (ordered << 32) | (0xFFFFFFFF - np.int64(order[found[i]]))
            filled_now += 1
        filled[query], thresholds[query] = filled_now, least
