-- Vectors of memories, for those who search by meaning too (docs/memory.md): one for each memory and
-- embedder, made by a worker when it next recalls for the owner. Nothing rests on them: a memory
-- without one is found by its words.
--
-- Plain arrays, so that they are there on every server; where the extension `vector` is installed, it
-- computes the distances.

CREATE TABLE celeriac.memory_vectors (
    tenant_id text NOT NULL,
    user_id text NOT NULL,
    namespace text NOT NULL,
    memory_key text NOT NULL,
    embedder text NOT NULL CHECK (embedder <> ''),
    version integer NOT NULL,  -- of the memory that it was made of
    embedding real[] NOT NULL CHECK (cardinality(embedding) BETWEEN 1 AND 16000),  -- of length 1
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, user_id, namespace, memory_key, embedder),
    FOREIGN KEY (tenant_id, user_id, namespace, memory_key) REFERENCES celeriac.memories
);

-- A vector tells of its content, so it goes with it: whoever changes, forgets or erases a memory, and
-- whatever else that login may do. Who stores one locks the memory's row, so that none comes after.
CREATE FUNCTION celeriac.drop_vectors() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM celeriac.memory_vectors
    WHERE tenant_id = NEW.tenant_id AND user_id = NEW.user_id AND namespace = NEW.namespace
        AND memory_key = NEW.memory_key;
    RETURN NULL;
END $$;
CREATE TRIGGER drop_vectors AFTER UPDATE ON celeriac.memories FOR EACH ROW
    EXECUTE FUNCTION celeriac.drop_vectors();

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT SELECT, INSERT ON celeriac.memory_vectors TO celeriac_worker;
        GRANT UPDATE (version, embedding, made_at) ON celeriac.memory_vectors TO celeriac_worker;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        RETURN;
    END IF;
    GRANT SELECT ON celeriac.memory_vectors TO celeriac_api;
    ALTER TABLE celeriac.memory_vectors ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON celeriac.memory_vectors USING (true);
    CREATE POLICY own_tenant ON celeriac.memory_vectors AS RESTRICTIVE TO celeriac_api
        USING (tenant_id = ANY ((SELECT celeriac.current_tenants())::text[])
            AND (user_id = ANY ((SELECT celeriac.current_owners())::text[])
                OR '*' = ANY ((SELECT celeriac.current_owners())::text[])));
END $$;
